"""Sparsemax and entmax losses for one label: known values, the entmax package, other scales."""

import entmax
import pytest
import torch

from sparse_attn.losses import entmax_loss, sparsemax_loss
from tests.losses.cases import assert_close


def random_rows(count=20, n=7):
    return 2 * torch.randn(count, n, dtype=torch.float64), torch.randint(n, (count,))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(sparsemax_loss, entmax.sparsemax_loss), (entmax_loss, entmax.entmax15_loss)],
)
def test_agrees_with_the_entmax_package(ours, theirs):
    scores, target = random_rows()
    assert_close(ours(scores, target, reduction="none"), theirs(scores, target), 0, 1e-12)


def test_entmax_loss_is_continuous_at_alpha_one():
    scores, target = random_rows()
    assert_close(
        entmax_loss(scores, target, 1 + 1e-6), entmax_loss(scores, target, 1.0).item(), 0, 1e-4
    )


@pytest.mark.parametrize(("alpha", "margin"), [(2.0, 1.0), (1.5, 2.0), (1.2, 5.0)])
def test_zero_set(alpha, margin):
    """Exactly 0 iff the target leads by 1 / (alpha - 1)."""
    gaps = torch.tensor([margin / 2, margin, margin + 0.1, margin + 30], dtype=torch.float64)
    scores = torch.stack([gaps, torch.zeros(4), torch.full((4,), -2.0)], -1).double()
    found = entmax_loss(scores, torch.zeros(4).long(), alpha, reduction="none")
    assert found[0] > 1e-3
    assert_close(found[1:], [0.0, 0.0, 0.0], 0, 1e-12)

"""Sparsemax and entmax losses for one label: known values, the entmax package, other scales."""

from functools import partial

import entmax
import pytest
import torch

from sparse_attn.losses import entmax_loss, sparsemax_loss
from tests.losses.cases import Z, close


def random_rows(count=20, n=7):
    return 2 * torch.randn(count, n, dtype=torch.float64), torch.randint(n, (count,))


def test_golden_values_of_sparsemax_loss():
    """Target 1 gives .9225; by hand with tau = .35: target 0 .1225, 2 2.6225, 3 .4225."""
    scores = torch.tensor([Z] * 4, dtype=torch.float64)
    found = sparsemax_loss(scores, torch.arange(4), reduction="none")
    close(found, [0.1225, 0.9225, 2.6225, 0.4225], 0, 1e-12)
    close(sparsemax_loss(scores[0], torch.tensor([1, 0, 0, 1])), 0.0225, 0, 1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(sparsemax_loss, entmax.sparsemax_loss), (entmax_loss, entmax.entmax15_loss)],
)
def test_agrees_with_the_entmax_package(ours, theirs):
    scores, target = random_rows()
    close(ours(scores, target, reduction="none"), theirs(scores, target), 0, 1e-12)


def test_entmax_loss_is_continuous_at_alpha_one():
    scores, target = random_rows()
    close(entmax_loss(scores, target, 1 + 1e-6), entmax_loss(scores, target, 1.0).item(), 0, 1e-4)


@pytest.mark.parametrize(("alpha", "margin"), [(2.0, 1.0), (1.5, 2.0), (1.2, 5.0)])
def test_zero_set(alpha, margin):
    """Exactly 0 iff the target leads by 1 / (alpha - 1)."""
    gaps = torch.tensor([margin / 2, margin, margin + 0.1, margin + 30], dtype=torch.float64)
    scores = torch.stack([gaps, torch.zeros(4), torch.full((4,), -2.0)], -1).double()
    found = entmax_loss(scores, torch.zeros(4).long(), alpha, reduction="none")
    assert found[0] > 1e-3
    close(found[1:], [0.0, 0.0, 0.0], 0, 1e-12)


LOSSES = {"sparsemax": sparsemax_loss} | {
    f"entmax {alpha}": partial(entmax_loss, alpha=alpha) for alpha in (1.0, 1.2, 1.5, 2.0)
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_large_scores(loss):
    """1e4 and its square are no trouble in float32, nor is 1e4 in float16."""
    target = torch.tensor([1])
    small = loss(torch.tensor([[0.5, 0.0, -2e4]], dtype=torch.float64), target).item()
    close(loss(torch.tensor([[1e4, 1e4 - 0.5, -1e4]]), target), small, 1e-3, 1e-3)
    half = torch.tensor([[0.5, 0.0, -1e4]], dtype=torch.float16)
    close(loss(half, target), small, 2e-3, 2e-3)

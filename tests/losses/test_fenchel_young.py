"""Sparsemax and entmax losses for one label: known values, the entmax package, other scales."""

import math

import entmax
import pytest
import torch
from torch.nn import functional as F

from sparse_attn import functional
from sparse_attn.losses import entmax_loss, sparsemax_loss
from tests.losses.cases import Z, close

ALPHAS = (1.0, 1.2, 1.5, 2.0)
LOSSES = {"sparsemax": (sparsemax_loss, functional.sparsemax)} | {
    f"entmax {alpha}": (
        lambda z, c, alpha=alpha, **options: entmax_loss(z, c, alpha, **options),
        lambda z, alpha=alpha: functional.entmax(z, alpha),
    )
    for alpha in ALPHAS
}
losses = pytest.mark.parametrize(("loss", "mapping"), LOSSES.values(), ids=LOSSES)


def rows_of(loss, scores, target):
    return loss(scores, target, reduction="none")


def random_rows(count=20, n=7):
    return 2 * torch.randn(count, n, dtype=torch.float64), torch.randint(n, (count,))


def test_golden_values_of_sparsemax_loss():
    """Target 1 gives .9225; by hand with tau = .35: target 0 .1225, 2 2.6225, 3 .4225."""
    scores = torch.tensor([Z] * 4, dtype=torch.float64)
    found = rows_of(sparsemax_loss, scores, torch.arange(4))
    close(found, [0.1225, 0.9225, 2.6225, 0.4225], 0, 1e-12)
    close(sparsemax_loss(scores[0], torch.tensor([1, 0, 0, 1])), 0.0225, 0, 1e-12)


def test_sparsemax_loss_equals_the_one_of_the_entmax_package():
    scores, target = random_rows()
    found = rows_of(sparsemax_loss, scores, target)
    close(found, entmax.sparsemax_loss(scores, target).numpy(), 0, 1e-12)


def test_entmax15_loss_equals_the_one_of_the_entmax_package():
    scores, target = random_rows()
    found = rows_of(entmax_loss, scores, target)
    close(found, entmax.entmax15_loss(scores, target).numpy(), 0, 1e-12)


def test_ends_of_entmax_loss():
    """alpha = 1 is cross-entropy, alpha = 2 the sparsemax loss."""
    scores, target = random_rows()
    close(entmax_loss(scores, target, 1.0), F.cross_entropy(scores, target).numpy(), 0, 1e-12)
    close(entmax_loss(scores, target, 2.0), sparsemax_loss(scores, target).numpy(), 0, 1e-12)


def test_entmax_loss_of_several_labels_at_alpha_one_is_the_divergence():
    scores, target = random_rows()[0], torch.rand(20, 7, dtype=torch.float64)
    eta = target / target.sum(-1, keepdim=True)
    expected = F.kl_div(scores.log_softmax(-1), eta, reduction="none").sum(-1)
    close(entmax_loss(scores, target, 1.0, reduction="none"), expected.numpy(), 0, 1e-12)


def test_entmax_loss_is_continuous_at_alpha_one():
    scores, target = random_rows()
    close(entmax_loss(scores, target, 1 + 1e-6), entmax_loss(scores, target, 1.0).item(), 0, 1e-4)


@losses
def test_gradient_is_p_minus_one_hot(loss, mapping):
    scores, target = random_rows()
    upstream = torch.randn(20, dtype=torch.float64)
    (rows_of(loss, scores.requires_grad_(), target) * upstream).sum().backward()
    expected = upstream.unsqueeze(-1) * (mapping(scores.detach()) - F.one_hot(target, 7))
    close(scores.grad, expected.numpy(), 0, 1e-14)


@pytest.mark.parametrize(("alpha", "margin"), [(2.0, 1.0), (1.5, 2.0), (1.2, 5.0)])
def test_zero_set(alpha, margin):
    """Exactly 0 iff the target leads by 1 / (alpha - 1)."""
    gaps = torch.tensor([margin / 2, margin, margin + 0.1, margin + 30], dtype=torch.float64)
    scores = torch.stack([gaps, torch.zeros(4), torch.full((4,), -2.0)], -1).double()
    found = rows_of(lambda *a, **o: entmax_loss(*a, alpha, **o), scores, torch.zeros(4).long())
    assert found[0] > 1e-3
    close(found[1:], [0.0, 0.0, 0.0], 0, 1e-12)


@losses
def test_large_scores(loss, mapping):
    """1e4 and its square are no trouble in float32, nor is 1e4 in float16."""
    target = torch.tensor([1])
    small = loss(torch.tensor([[0.5, 0.0, -2e4]], dtype=torch.float64), target).item()
    close(loss(torch.tensor([[1e4, 1e4 - 0.5, -1e4]]), target), small, 1e-3, 1e-3)
    half = torch.tensor([[0.5, 0.0, -1e4]], dtype=torch.float16)
    close(loss(half, target), small, 2e-3, 2e-3)


@losses
def test_nan_stays_in_its_row(loss, mapping):
    scores, target = random_rows(3)
    clean = rows_of(loss, scores, target)
    scores[1, 2] = math.nan
    found = rows_of(loss, scores, target)
    assert found[1].isnan()
    close(found[[0, 2]], clean[[0, 2]].numpy(), 0, 0)

"""Gradients of the losses to scores and parameters, and where there is none."""

import pytest
import torch
from torch.autograd import gradcheck

from sparse_attn import losses
from tests.losses.cases import CASES

# Away from kinks: no two differences of these scores are 0, 1, 1/2 or 1/4 apart.
SCORES = [[0.31, -0.47, 1.13, 0.02, -1.29], [-0.83, 0.68, 0.19, -0.26, 1.41]]
SEVERAL = [[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0, 0.0]]


def scores():
    return torch.tensor(SCORES, dtype=torch.float64, requires_grad=True)


XI = {
    "of a row": [[0.4], [1.9]],
    "near 0": [[1e-3], [0.02]],
    "of a class": [[0.3, 1.0, 0.2, 2.0, 5.0]],
}


@pytest.mark.parametrize("values", XI.values(), ids=XI)
def test_gradcheck_of_xi(values):
    """Learned; the slopes of the parameters of other losses are in test_oracle.py."""
    xi, target = torch.tensor(values, dtype=torch.float64), torch.tensor(SEVERAL)

    def loss(z, xi):
        return losses.bouchard_loss(z, target, xi, reduction="none")

    assert gradcheck(loss, (scores(), xi.requires_grad_()))


@pytest.mark.parametrize("xi", ["shared", "per_class", 0.8])
@pytest.mark.parametrize("fixed", [False, True])
def test_gradcheck_of_bouchard(xi, fixed):
    target = torch.tensor(SEVERAL)
    if not fixed:
        assert gradcheck(lambda z: losses.bouchard_loss(z, target, xi), scores())
        return
    alpha = torch.tensor([0.4, -1.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda z, a: losses.bouchard_loss(z, target, xi, a), (scores(), alpha))


@pytest.mark.parametrize(
    "name", [n for n in CASES if n.startswith(("sparseg", "hourg", "r ", "t "))]
)
def test_tied_scores_get_the_same_gradient(name):
    """Even where a hinge has its kink, as at the start from zero weights."""
    z = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    CASES[name](z, torch.tensor([1, 0, 1, 0, 0, 1])).backward()
    labels, others = z.grad[[0, 2, 5]], z.grad[[1, 3, 4]]
    assert (labels == labels[0]).all()
    assert (others == others[0]).all()
    assert labels[0] < 0 < others[0]


@pytest.mark.parametrize(
    ("name", "scale"),
    [("sparsemax", 1.0), ("sparsegen 0.5", 0.5), ("sparsegen -2.0", 3.0), ("hourglass 0.5", 1.0)],
)
def test_no_gradient_at_the_minimum(name, scale):
    """Labels that tie, just far enough ahead of the best of the others."""
    z = torch.tensor([[0.5, 0.5, 0.0, -1.0]], dtype=torch.float64)  # sum 0, so that a = max
    z = (scale * z).requires_grad_()
    loss = CASES[name](z, torch.tensor([[1, 1, 0, 0]]))
    loss.backward()
    assert loss.item() == 0
    assert (z.grad == 0).all()


def test_targets_get_no_gradient():
    target = torch.tensor(SEVERAL, requires_grad=True)
    losses.sparsemax_loss(scores(), target).backward()
    assert target.grad is None

"""Gradients of the losses to scores and parameters, and where there is none."""

import math

import numpy
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from sparse_attn import Mapping, losses
from tests.losses import oracle
from tests.losses.cases import CASES, assert_close, every_case, every_slope

# Away from kinks: no two differences of these scores are 0, 1, 1/2 or 1/4 apart.
SCORES = [[0.31, -0.47, 1.13, 0.02, -1.29], [-0.83, 0.68, 0.19, -0.26, 1.41]]
SEVERAL = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0, 0.0]])


def scores():
    return torch.tensor(SCORES, dtype=torch.float64, requires_grad=True)


# Beside the slopes of the formula


@every_case
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_gradients_are_the_slopes_of_the_formula(case, seed):
    rng = numpy.random.default_rng(seed)
    z = rng.normal(0, 1.5, 5)
    eta = (rng.random(5) < 0.5).astype(float)
    eta[0] = 1
    if not case.binary:
        eta = eta * (0.2 + rng.random(5))
    expected, kink = oracle.slope(lambda x: case.row(x, eta, **case.parameters), z)
    assume(kink < 1e-4)
    given_scores = torch.tensor(z, requires_grad=True)
    case(given_scores, torch.tensor(eta)).backward()
    assert_close(given_scores.grad, expected, rtol=0, atol=2e-7)


@every_slope
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_gradients_of_parameters_are_slopes_too(name, parameter, seed):
    case, rng = CASES[name], numpy.random.default_rng(seed)
    z, eta = rng.normal(0, 1.5, 6), numpy.array([1.0, 0, 1, 0, 0, 0])

    def row(x):
        return case.row(z, eta, **{**case.parameters, parameter: x.item()})

    value = torch.tensor(case.parameters[parameter], dtype=torch.float64, requires_grad=True)
    expected, kink = oracle.slope(row, [value.item()])
    assume(kink < 1e-4)
    arguments = {**case.parameters, parameter: value}
    case.loss(torch.tensor(z), torch.tensor(eta), **arguments).backward()
    assert_close(value.grad, expected[0], rtol=0, atol=2e-7)


XI = {
    "shared": "shared",
    "per_class": "per_class",
    "a number": 0.8,
    "of a row": [[0.4], [1.9]],
    "near 0": [[1e-3], [0.02]],
    "of a class": [[0.3, 1.0, 0.2, 2.0, 5.0]],
}


@pytest.mark.parametrize("fixed", [False, True], ids=["best alpha", "given alpha"])
@pytest.mark.parametrize("xi", XI.values(), ids=XI)
def test_gradcheck_of_bouchard(xi, fixed):
    learned = [torch.tensor([0.4, -1.0], dtype=torch.float64)] if fixed else []
    if isinstance(xi, list):
        learned.append(torch.tensor(xi, dtype=torch.float64))

    def loss(z, *learned):
        alpha = learned[0] if fixed else None
        width = learned[-1] if isinstance(xi, list) else xi
        return losses.bouchard_loss(z, SEVERAL, width, alpha, reduction="none")

    assert gradcheck(loss, (scores(), *(x.requires_grad_() for x in learned)))


@pytest.mark.parametrize(
    "mapping",
    [Mapping("plif", knots=20, bound=3.0), Mapping("sigsoftmax", learn="bias")],
    ids=lambda mapping: mapping.name,
)
def test_learned_mappings_learn(mapping):
    losses.mapping_nll(scores(), SEVERAL, mapping).backward()
    for parameter in mapping.parameters():
        assert parameter.grad.abs().sum() > 0


# Where there is none


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


def test_targets_get_no_gradient():
    target = SEVERAL.clone().requires_grad_()
    losses.sparsemax_loss(scores(), target).backward()
    assert target.grad is None


@every_slope
def test_rows_that_do_not_count_have_no_part_in_the_gradient_of_a_parameter(name, parameter):
    case, z = CASES[name], torch.full((3, 5), math.nan, dtype=torch.float64)
    z[1] = torch.tensor([0.3, -0.4, 1.1, 0.0, -1.3])
    one_of_three = torch.tensor([[False], [True], [False]])
    found = []
    for kept, mask, target in (
        (slice(1, 2), None, [0]),
        (slice(None), None, [-100, 0, -100]),
        (slice(None), one_of_three, [0, 0, 0]),
    ):
        value = torch.tensor(case.parameters[parameter], dtype=torch.float64, requires_grad=True)
        arguments = {**case.parameters, parameter: value}
        case.loss(z[kept], torch.tensor(target), **arguments, mask=mask).backward()
        found.append(value.grad.item())
    assert_close(found[1:], found[:1] * 2, 1e-12)
    assert found[0] != 0 or name in ("r 0.9", "t 0.5")  # where p of the label is 0

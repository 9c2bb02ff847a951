"""Bouchard's bounds beside a general minimiser."""

import math

import numpy
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sparse_attn import losses
from tests.losses import oracle
from tests.losses.cases import EXTREME, Eta, Row, Z, close

FORMS = {"shared": False, "per_class": True}
LEAST = {"shared": oracle.bouchard_least_shared, "per_class": oracle.bouchard_least_per_class}
every_form = pytest.mark.parametrize("form", FORMS)
Scores = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.integers(-300, 300).map(lambda x: x / 64), min_size=n, max_size=n)
)


@every_form
@given(z=Scores)
@settings(max_examples=15)
def test_bound_is_the_least_over_both_parameters(form, z):
    ours = losses.bouchard_bound(torch.tensor(z, dtype=torch.float64), form).item()
    assume(len(z) > 1)  # alpha is then at minus infinity, where no minimiser arrives
    assert ours == pytest.approx(oracle.bouchard_least(z, FORMS[form]), abs=1e-8)


@given(z=Scores)
def test_bounds_are_above_log_sum_exp_and_in_order(z):
    scores = torch.tensor(z, dtype=torch.float64)
    shared, own = (losses.bouchard_bound(scores, form).item() for form in FORMS)
    assert shared == pytest.approx(oracle.bouchard_least_shared(z), abs=1e-10)
    assert own == pytest.approx(oracle.bouchard_least_per_class(z), abs=1e-10)
    assert shared >= own - 1e-10 >= oracle.log_sum_exp(z) - 2e-10


@given(z=Scores, alpha=st.floats(-6, 6), xi=st.floats(0, 20))
def test_bound_at_given_parameters(z, alpha, xi):
    scores = torch.tensor(z, dtype=torch.float64)
    bound = losses.bouchard_bound(scores, xi=xi, alpha=alpha).item()
    assert bound == pytest.approx(oracle.bouchard(z, alpha, xi), abs=1e-9)
    assert bound >= oracle.log_sum_exp(z) - 1e-9


@given(z=Scores, alpha=st.floats(-6, 6))
@settings(max_examples=15)
def test_bound_at_one_given_parameter(z, alpha):
    scores = torch.tensor(z, dtype=torch.float64)
    offset = numpy.array(z) - alpha
    given_alpha = {
        "shared": oracle.bouchard(z, alpha, math.sqrt((offset**2).mean())),
        "per_class": oracle.bouchard(z, alpha, numpy.abs(offset)),
    }
    for form, exact in given_alpha.items():
        close(losses.bouchard_bound(scores, form, alpha=alpha), exact, 0, 1e-9)
    width = 1.5
    at_width = losses.bouchard_bound(scores, xi=width).item()
    curve = math.tanh(width / 2) / (4 * width)
    best = ((len(z) - 2) / 4 + curve * sum(z)) / (curve * len(z))
    assert at_width == pytest.approx(oracle.bouchard(z, best, width), abs=1e-9)


@every_form
@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 30000])
def test_gap_at_equal_scores(form, n):
    """(n - 1) log(n / (n - 1)): 0, log 2, then up to 1."""
    gap = (n - 1) * math.log(n / (n - 1)) if n > 1 else 0.0
    scores = torch.full((2, n), 0.7, dtype=torch.float64)
    close(losses.bouchard_bound(scores, form), [0.7 + math.log(n) + gap] * 2, 0, 1e-8)


def test_bounds_of_the_known_row():
    z = torch.tensor(Z, dtype=torch.float64)
    close(losses.bouchard_bound(z, "shared"), 2.7583199, 0, 5e-8)
    close(losses.bouchard_bound(z, "per_class"), 2.6328423, 0, 5e-8)


@given(mean=st.floats(-50, 50), half=st.floats(0, 20))
def test_shared_bound_of_two_classes(mean, half):
    """alpha = mean z, xi = its standard deviation."""
    z = torch.tensor([mean - half, mean + half], dtype=torch.float64)
    exact = oracle.bouchard(z.tolist(), mean, half)
    close(losses.bouchard_bound(z, "shared"), exact, 0, 1e-9)


@every_form
@given(z=st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=5))
@settings(max_examples=10)
def test_slope_of_the_bound(form, z):
    expected, _ = oracle.slope(LEAST[form], z, h=1e-4)
    scores = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    losses.bouchard_bound(scores, form).backward()
    close(scores.grad, expected, 0, 1e-5)


@every_form
@pytest.mark.parametrize("z", EXTREME)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bounds_of_extreme_scores(form, z, dtype):
    scores = torch.tensor(z, dtype=dtype, requires_grad=True)
    bound = losses.bouchard_bound(scores, form)
    bound.backward()
    exact = scores.detach().double().tolist()
    assert bound.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    close(bound, LEAST[form](exact), 1e-5, 1e-4)
    assert scores.grad.isfinite().all()
    assert scores.grad.double().sum().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("alpha", [None, 0.4])
@pytest.mark.parametrize("xi", ["shared", "per_class", 1.5])
@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf])
def test_masked_scores_are_outside_the_bound(xi, alpha, fill):
    mask = torch.tensor([True, True, False, True])
    scores = torch.tensor([1.0, 0.2, fill, 0.7], dtype=torch.float64, requires_grad=True)
    bound = losses.bouchard_bound(scores, xi, alpha, mask=mask)
    bound.backward()
    alone = torch.tensor([1.0, 0.2, 0.7], dtype=torch.float64, requires_grad=True)
    same = losses.bouchard_bound(alone, xi, alpha)
    same.backward()
    close(bound, same)
    close(scores.grad, [*alone.grad[:2], 0.0, alone.grad[2]])


@every_form
@given(z=Row, eta=Eta)
@settings(max_examples=10)
def test_bouchard_loss_is_the_bound_less_the_targets_score(form, z, eta):
    bound = losses.bouchard_bound(z, form)
    close(losses.bouchard_loss(z, eta, form), (bound - (eta * z).sum()).numpy())
    assert losses.bouchard_loss(z, eta, form) >= losses.mapping_nll(z, eta, "softmax") - 1e-9

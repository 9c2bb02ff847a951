"""Bouchard's bounds of log-sum-exp; his loss is in the tables of the other tests."""

import math

import numpy
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import logsumexp

from sparse_attn.losses import bouchard_bound, bouchard_loss
from sparse_attn.losses.bouchard import shared_bouchard_bound, shared_bouchard_optimum
from tests.losses import oracle
from tests.losses.cases import EXTREME, Z, assert_close

GOLDEN = torch.tensor(Z, dtype=torch.float64)
LEAST = oracle.BOUCHARD_LEAST
every_form = pytest.mark.parametrize("form", LEAST)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
Scores = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.integers(-300, 300).map(lambda x: x / 64), min_size=n, max_size=n)
)


def of_moments(scores):
    """The shared bound, of mean and variance, and the xi and alpha where it is reached."""
    moments = scores.mean(-1), scores.var(-1, correction=0), scores.shape[-1]
    optimum = shared_bouchard_optimum(*moments) if scores.shape[-1] > 1 else ()
    return shared_bouchard_bound(*moments), *optimum


def test_golden_values():
    """The least bounds to the last digit of a root finder, and those that are printed."""
    for form, value in (("shared", 2.7583199), ("per_class", 2.6328423)):
        assert_close(bouchard_bound(GOLDEN, form), value, 0, 5e-8)
        assert_close(bouchard_bound(GOLDEN, form), LEAST[form](Z), 0, 1e-12)
    bound, xi, alpha = of_moments(GOLDEN)
    assert_close(bound, 2.7583199, 0, 5e-8)
    assert_close(xi, 1.5320497, 0, 5e-8)
    assert_close(alpha, 1.2883502, 0, 5e-8)


# Beside root finders, a general minimiser and the formula


@given(n=st.integers(1, 300), power=st.floats(-2, 3), shift=st.floats(-50, 50), seed=st.integers(0))
def test_bounds_are_exact_at_every_scale_and_in_order(n, power, shift, seed):
    z = numpy.random.default_rng(seed).normal(shift, 10**power, n)
    scores = torch.tensor(z)
    shared, own = (bouchard_bound(scores, form).item() for form in LEAST)
    assert_close(shared, LEAST["shared"](z), 1e-12, 1e-10)
    assert_close(own, LEAST["per_class"](z), 1e-12, 1e-10)
    assert shared >= own - 1e-10 >= logsumexp(z) - 2e-10
    bound, *optimum = (value.item() for value in of_moments(scores))
    assert_close(bound, shared, 1e-12, 1e-10)
    if n > 1:
        assert_close(bound, oracle.bouchard(z, *reversed(optimum)), 1e-9)


@given(z=Scores, alpha=st.floats(-6, 6), xi=st.floats(0, 20))
@example(z=Z, alpha=0.3, xi=0.0)
@example(z=Z, alpha=0.3, xi=1e-9)
def test_bound_at_given_parameters(z, alpha, xi):
    scores, row = torch.tensor(z, dtype=torch.float64), numpy.array(z)
    best = oracle.bouchard_alpha(z, xi)
    for form, at in ((xi, alpha), ("shared", alpha), ("per_class", alpha), (xi, None)):
        reached = best if at is None else at
        exact = oracle.bouchard(z, reached, oracle.bouchard_width(row, form, reached))
        assert_close(bouchard_bound(scores, form, at), exact, 0, 1e-9)
        assert exact >= logsumexp(z) - 1e-9


# Rows whose bound is known


@every_form
@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 30000])
def test_gap_at_equal_scores(form, n):
    """(n - 1) log(n / (n - 1)): 0, log 2, then up to 1."""
    gap = (n - 1) * math.log(n / (n - 1)) if n > 1 else 0.0
    scores = torch.full((2, n), 0.7, dtype=torch.float64)
    assert_close(bouchard_bound(scores, form), [0.7 + math.log(n) + gap] * 2, 0, 1e-8)


@given(mean=st.floats(-50, 50), half=st.floats(0, 20))
def test_shared_bound_of_two_classes(mean, half):
    """alpha = mean z, xi = its standard deviation."""
    z = torch.tensor([mean - half, mean + half], dtype=torch.float64)
    assert_close(bouchard_bound(z, "shared"), oracle.bouchard(z.tolist(), mean, half), 0, 1e-9)
    if half > 0.1:
        assert_close(of_moments(z)[1:], (half, mean), 1e-6, 1e-6)


@every_form
@dtypes
def test_one_class(form, dtype):
    """B = z, alone or by the mask, with the gradient of z."""
    z = torch.tensor([[3.25, math.nan], [-1e6, 4.0]], dtype=dtype, requires_grad=True)
    bound = bouchard_bound(z, form, mask=torch.tensor([True, False]))
    bound.sum().backward()
    assert_close(bound, [3.25, -1e6], 0, 0)
    assert_close(z.grad, [[1.0, 0.0], [1.0, 0.0]], 1e-15, 0)
    single = torch.tensor([3.25], dtype=dtype)
    assert bouchard_bound(single, form) == of_moments(single)[0] == 3.25
    assert bouchard_loss(single, torch.tensor(0), form) == 0


@pytest.mark.parametrize("xi", [*LEAST, 1.0])
def test_nothing_takes_part(xi):
    z = torch.full((2, 3), math.nan, requires_grad=True)
    bound = bouchard_bound(z, xi, mask=torch.zeros(3, dtype=torch.bool))
    bound.sum().backward()
    assert (bound == 0).all()
    assert (z.grad == 0).all()


# Gradients


@pytest.mark.parametrize("n", [2, 3, 7])
def test_slope_of_the_shared_bound_by_its_moments(n):
    scores = 2 * torch.randn(3, n, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: of_moments(z)[0], (scores,))


# Precision


@every_form
@pytest.mark.parametrize("z", EXTREME)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bounds_of_extreme_scores(form, z, dtype):
    scores = torch.tensor(z, dtype=dtype, requires_grad=True)
    bound = bouchard_bound(scores, form)
    bound.backward()
    assert bound.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_close(bound, LEAST[form](scores.detach().double().tolist()), 1e-5, 1e-4)
    assert scores.grad.isfinite().all()
    assert scores.grad.double().sum().item() == pytest.approx(1, abs=0.02)


def test_float32_agrees_with_float64_at_every_variance():
    variance = torch.tensor([1e-6, 0.1, 1.0, 30.0, 1e4], dtype=torch.float64)
    exact = shared_bouchard_bound(torch.zeros_like(variance), variance, 1_000_000)
    rounded = shared_bouchard_bound(torch.zeros(5), variance.float(), 1_000_000)
    assert_close(rounded.double(), exact, 1e-5, 0)

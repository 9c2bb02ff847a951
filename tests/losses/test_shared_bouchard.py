"""The bound with one xi for all classes, of mean and variance of the scores."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from sparse_attn.losses.bouchard import shared_bouchard_bound, shared_bouchard_optimum

GOLDEN = torch.tensor([1.0, 0.2, -1.5, 0.7], dtype=torch.float64)


def bound_of(scores):
    return shared_bouchard_bound(scores.mean(-1), scores.var(-1, correction=0), scores.shape[-1])


def bound_at(scores, alpha, xi):
    """Bouchard's formula as it is written, one xi for all classes."""
    curvature = math.tanh(xi / 2) / (4 * xi) if xi else 0.125
    away = scores - alpha
    terms = (away - xi) / 2 + curvature * (away.square() - xi**2) + math.log1p(math.exp(xi))
    return alpha + terms.sum(-1)


def test_golden_values():
    xi, alpha = shared_bouchard_optimum(GOLDEN.mean(), GOLDEN.var(correction=0), 4)
    assert xi.item() == pytest.approx(1.5320497, abs=5e-8)
    assert alpha.item() == pytest.approx(1.2883502, abs=5e-8)
    assert bound_of(GOLDEN).item() == pytest.approx(2.7583199, abs=5e-8)


@pytest.mark.parametrize("n", [2, 3, 5, 40])
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_is_the_least_of_the_formula(n, scale):
    scores = scale * torch.randn(n, dtype=torch.float64) + 2
    found = minimize(lambda x: bound_at(scores, x[0], x[1] ** 2).item(), [1.0, 1.0], tol=1e-13)
    xi, alpha = shared_bouchard_optimum(scores.mean(), scores.var(correction=0), n)
    assert bound_of(scores).item() == pytest.approx(found.fun, rel=1e-9)
    assert bound_at(scores, alpha.item(), xi.item()).item() == pytest.approx(found.fun, rel=1e-9)


@given(st.integers(2, 300), st.floats(0.0, 30.0), st.floats(-50.0, 50.0), st.integers(0, 99))
def test_bounds_log_sum_exp_for_every_alpha_and_xi(n, scale, shift, seed):
    torch.manual_seed(seed)
    scores = scale * torch.randn(n, dtype=torch.float64) + shift
    best = bound_of(scores).item()
    assert best >= scores.logsumexp(-1).item() - 1e-9
    alpha, xi = shift + 5 * torch.randn(()).item(), 5 * torch.rand(()).item()
    assert bound_at(scores, alpha, xi).item() >= best - 1e-9 * abs(best)


@pytest.mark.parametrize("n", [2, 3, 100, 1_000_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gap_of_equal_scores(n, dtype):
    mean = torch.tensor([0.0, 2.5], dtype=dtype)
    gap = shared_bouchard_bound(mean, torch.zeros_like(mean), n) - (mean + math.log(n))
    expected = torch.full_like(gap, (n - 1) * math.log(n / (n - 1)))
    torch.testing.assert_close(gap, expected, rtol=0, atol=2e-6 if dtype == torch.float32 else 1e-8)


def test_float32_agrees_with_float64_over_a_large_vocabulary():
    variance = torch.tensor([1e-6, 0.1, 1.0, 30.0, 1e4], dtype=torch.float64)
    exact = shared_bouchard_bound(torch.zeros_like(variance), variance, 1_000_000)
    rounded = shared_bouchard_bound(torch.zeros(5), variance.float(), 1_000_000)
    torch.testing.assert_close(rounded.double(), exact, rtol=1e-5, atol=0)


def test_gap_at_unit_variance_is_that_of_the_specification():
    # log-sum-exp of many unit normal scores: log n + 1/2
    bound = shared_bouchard_bound(torch.zeros(()), torch.ones(()), 10_000)
    assert bound.item() - (math.log(10_000) + 0.5) == pytest.approx(89, abs=2)


def test_two_classes_and_one():
    scores = torch.tensor([0.3, 1.7], dtype=torch.float64)
    xi, alpha = shared_bouchard_optimum(scores.mean(), scores.var(correction=0), 2)
    assert alpha.item() == pytest.approx(1.0)
    assert xi.item() == pytest.approx(0.7)
    assert bound_of(torch.tensor([3.25])).item() == 3.25


@pytest.mark.parametrize("n", [2, 3, 7])
def test_gradient_is_that_of_the_optimum(n):
    scores = 2 * torch.randn(3, n, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(bound_of, (scores,))

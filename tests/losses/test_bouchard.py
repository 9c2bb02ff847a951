"""Bouchard's bounds: known values, the curvature near 0, ends of the ranges, precision."""

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparse_attn.losses import bouchard_bound, bouchard_loss
from sparse_attn.losses.bouchard import _curvature
from tests.losses import oracle
from tests.losses.cases import Z, close

GOLDEN = torch.tensor(Z, dtype=torch.float64)


def test_golden_values():
    """The least bounds to the last digit of a root finder, and those that are printed."""
    shared, own = bouchard_bound(GOLDEN).item(), bouchard_bound(GOLDEN, "per_class").item()
    assert shared == pytest.approx(2.7583199, abs=5e-8)
    assert own == pytest.approx(2.6328423, abs=5e-8)
    assert shared == pytest.approx(oracle.bouchard_least_shared(Z), abs=1e-12)
    assert own == pytest.approx(oracle.bouchard_least_per_class(Z), abs=1e-12)


def test_known_parameters_give_the_least_bounds():
    """The bound is flat there: an error of 5e-8 in them is one of 1e-14 in it."""
    shared, own = bouchard_bound(GOLDEN).item(), bouchard_bound(GOLDEN, "per_class").item()
    assert bouchard_bound(GOLDEN, 1.5320497, 1.2883502).item() == pytest.approx(shared, abs=1e-12)
    assert bouchard_bound(GOLDEN, 1.5320497).item() == pytest.approx(shared, abs=1e-12)
    assert bouchard_bound(GOLDEN, "shared", 1.2883502).item() == pytest.approx(shared, abs=1e-12)
    assert bouchard_bound(GOLDEN, "per_class", 1.4244186).item() == pytest.approx(own, abs=1e-12)
    xi = (GOLDEN - 1.4244186).abs()
    assert bouchard_bound(GOLDEN, xi).item() == pytest.approx(own, abs=1e-12)
    assert bouchard_bound(GOLDEN, xi, 1.4244186).item() == pytest.approx(own, abs=1e-12)


@given(st.floats(-7, 3).map(lambda power: 10**power))
def test_curvature_and_its_slope(size):
    """lambda = tanh(xi/2) / (4 xi) against its integral form, of which nothing cancels.

    tanh(x)/x is the mean over s in [0, 1] of sech^2(s x).
    """
    xi = torch.tensor(size, dtype=torch.float64, requires_grad=True)
    found = _curvature(xi)
    close(found, math.tanh(size / 2) / (4 * size), 1e-14, 0)
    (slope,) = torch.autograd.grad(found, xi)
    nodes, weights = (torch.tensor(a) for a in _gauss_legendre())
    x = nodes * size / 2
    if size < 20:  # beyond, the nodes miss the peak
        inner = (-nodes * torch.tanh(x) / torch.cosh(x).square()) @ weights
        close(slope, inner.item() / 8, 1e-9, 1e-18)


def _gauss_legendre():
    nodes, weights = numpy.polynomial.legendre.leggauss(60)
    return (nodes + 1) / 2, weights / 2


def test_curvature_at_0_and_on_either_side_of_its_series():
    assert _curvature(torch.tensor(0.0)).item() == 0.125
    below, above = (
        _curvature(torch.tensor(0.03 + d, dtype=torch.float64)) for d in (-1e-15, 1e-15)
    )
    assert below.item() == pytest.approx(above.item(), rel=1e-14, abs=0)


def test_fixed_xi_of_0_is_its_limit():
    """sum_k x_k / 2 + x_k^2 / 8 + log 2, at alpha = mean z + (n - 2) / (4 n lambda)."""
    alpha = GOLDEN.mean() + 2 / (4 * 4 / 8)
    x = GOLDEN - alpha
    expected = alpha + (x / 2 + x.square() / 8 + math.log(2)).sum()
    close(bouchard_bound(GOLDEN, 0.0), expected.item(), 0, 1e-14)
    close(bouchard_bound(GOLDEN, 1e-9), expected.item(), 0, 1e-12)


@pytest.mark.parametrize("xi", ["shared", "per_class"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_class(xi, dtype):
    """B = z, alone or by the mask, with the gradient of z."""
    z = torch.tensor([[3.25, math.nan], [-1e6, 4.0]], dtype=dtype, requires_grad=True)
    bound = bouchard_bound(z, xi, mask=torch.tensor([True, False]))
    bound.sum().backward()
    close(bound, [3.25, -1e6], 0, 0)
    close(z.grad, [[1.0, 0.0], [1.0, 0.0]], 1e-15, 0)
    close(bouchard_bound(torch.tensor([3.25], dtype=dtype), xi), 3.25, 0, 0)
    assert bouchard_loss(torch.tensor([3.25], dtype=dtype), torch.tensor(0), xi) == 0


def test_nothing_takes_part():
    z = torch.full((2, 3), math.nan, requires_grad=True)
    for xi in ("shared", "per_class", 1.0):
        bound = bouchard_bound(z, xi, mask=torch.zeros(3, dtype=torch.bool))
        bound.sum().backward()
        assert (bound == 0).all()
        assert (z.grad == 0).all()


@pytest.mark.parametrize("xi", ["shared", "per_class", 1.5])
def test_float32_agrees_with_float64_over_a_vocabulary(xi):
    z = 2 * torch.randn(3, 50_000, dtype=torch.float64) + 100
    close(bouchard_bound(z.float(), xi), bouchard_bound(z, xi).numpy(), 1e-5)


@given(st.integers(2, 30), st.floats(0.01, 1e3), st.integers(0, 99))
def test_per_class_bound_is_exact_at_every_scale(n, scale, seed):
    z = scale * torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    close(bouchard_bound(z, "per_class"), oracle.bouchard_least_per_class(z.numpy()), 1e-12, 1e-12)


def test_loss_keeps_its_digits_far_from_0():
    near, far = (torch.tensor(Z, dtype=torch.float32) + shift for shift in (0, 2.0**20))
    exact = far.double() - 2.0**20
    for xi in ("shared", "per_class", 1.5):
        close(
            bouchard_loss(far, torch.tensor(1), xi), bouchard_loss(exact, torch.tensor(1), xi), 1e-5
        )
        assert bouchard_loss(near, torch.tensor(1), xi) > 0

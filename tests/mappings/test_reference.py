"""Every mapping against an independent solver: the row-by-row numpy references, and entmax."""

import entmax as entmax_package
import numpy as np
import pytest
import torch

from sparse_attn import functional as maps

from . import rows
from .cases import CASES, assert_close, cases, each, random_scores

SIZES = [1, 2, 3, 64, 65, 2049]


@pytest.mark.parametrize("n", SIZES)
@cases
def test_matches_the_reference(case, n):
    scores = random_scores(2, n)
    expected = case.log_rows(scores)
    assert_close(case(scores), expected.exp())
    log_p = case(scores, log=True)
    assert_close(log_p.exp(), expected.exp())
    # Near a threshold a rounding of the threshold is a large part of p, so log p is compared
    # where p is large enough: an error of 1e-13 in p is 1e-10 in log p there.
    clear = expected > np.log(1e-3) if case.zeros else torch.ones_like(scores, dtype=torch.bool)
    assert_close(log_p[clear], expected[clear], rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 30.0, 1000.0])
@cases
def test_matches_the_reference_at_any_scale(case, scale):
    scores = random_scores(4, 50, scale=scale)
    expected = case.log_rows(scores).exp()
    # exp turns the rounding of a score into a relative error, hence the factor `scale`.
    tolerance = 1e-13 * max(scale, 1)
    assert_close(case(scores), expected, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e-3, 1e-2, 0.1])
@each([case for case in CASES if case.zeros])
def test_long_rows_of_close_scores(case, scale):
    """Where supports are widest, and a solver of thresholds has furthest to go."""
    scores = random_scores(4, 2049, scale=scale)
    assert_close(case(scores), case.log_rows(scores).exp())


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("alpha", [1.5, 1.9, 2.0])
def test_entmax_of_a_long_context(alpha, scale):
    """The wider the support, the more steps a solver needs: 16384 entries share the mass."""
    p = maps.entmax(random_scores(4, 16384, scale=scale), alpha)
    one = torch.ones(4, dtype=torch.float64)
    assert_close(p.sum(-1), one, rtol=0, atol=1e-11)  # 16384 roundings of tau


@pytest.mark.parametrize("alpha", [1 + 1e-9, 1 + 1e-6, 1.01, 1.1, 1.9, 2 - 1e-9])
def test_entmax_over_alpha(alpha):
    scores = random_scores(4, 40)
    log_p = np.stack([rows.entmax(row, alpha) for row in scores.numpy()])
    # The power 1 / (alpha - 1) of the reference multiplies the relative rounding of its base.
    tolerance = max(1e-12, 1e-15 / (alpha - 1))
    expected = torch.from_numpy(np.exp(log_p))
    assert_close(maps.entmax(scores, alpha), expected, rtol=tolerance, atol=tolerance)


# The entmax package: values, the gradient of the scores and that of alpha.

PEERS = [
    (maps.sparsemax, {}, lambda z: entmax_package.sparsemax(z, dim=-1)),
    (maps.entmax, {"alpha": 2.0}, lambda z: entmax_package.sparsemax(z, dim=-1)),
    (maps.entmax, {"alpha": 1.5}, lambda z: entmax_package.entmax15(z, dim=-1)),
    (maps.entmax, {"alpha": 1.25}, lambda z: entmax_package.entmax_bisect(z, 1.25, n_iter=60)),
]


@pytest.mark.parametrize(("ours", "params", "theirs"), PEERS)
@pytest.mark.parametrize("n", [1, 2, 65, 513])
def test_agrees_with_the_entmax_package(ours, params, theirs, n):
    scores = random_scores(5, n).requires_grad_()
    cotangent = random_scores(5, n)
    p, expected = ours(scores, **params), theirs(scores)
    assert_close(p, expected, rtol=1e-9, atol=1e-11)
    (gradient,) = torch.autograd.grad(p, scores, cotangent)
    (expected,) = torch.autograd.grad(expected, scores, cotangent)
    # Both solve for tau to about 1e-15, which p^(2 - alpha) enlarges where p is small.
    assert_close(gradient, expected, rtol=1e-9, atol=1e-11)


def test_alpha_gradient_agrees_with_the_entmax_package():
    alpha = torch.tensor([1.05, 1.25, 1.5, 1.9, 2.0], dtype=torch.float64, requires_grad=True)
    scores, cotangent = random_scores(5, 33), random_scores(5, 33)
    (gradient,) = torch.autograd.grad(maps.entmax(scores, alpha), alpha, cotangent)
    peer = entmax_package.entmax_bisect(scores, alpha[:, None], n_iter=60)
    (expected,) = torch.autograd.grad(peer, alpha, cotangent)
    # Their gradient cancels terms of size 1 / (alpha - 1)^2 = 400 with rounding 1e-13 each.
    assert_close(gradient, expected, rtol=1e-7, atol=1e-9)


# The optimisation problems that define the projections, with no solver at all.


PROBLEMS = [
    (maps.sparsegen, lam, lambda p, z, lam: lam * p.pow(2) - (p - z).pow(2))
    for lam in (-3.0, 0.0, 0.6)
] + [
    # p z plus the entropy of Tsallis
    (maps.entmax, alpha, lambda p, z, alpha: p * z + (p - p.pow(alpha)) / (alpha * (alpha - 1)))
    for alpha in (1.2, 1.5, 2.0)
]


@pytest.mark.parametrize(("mapping", "parameter", "term"), PROBLEMS)
def test_no_other_point_of_the_simplex_is_better(mapping, parameter, term):
    """p maximises a sum of terms, one an entry."""
    scores = random_scores(3, 6, scale=0.7)
    best = mapping(scores, parameter)
    highest = term(best, scores, parameter).sum(-1)
    others = torch.distributions.Dirichlet(torch.full((6,), 0.5).double()).sample((500, 3))
    for step in (1.0, 1e-2, 1e-4):
        nearby = best + step * (others - best)
        assert (term(nearby, scores, parameter).sum(-1) <= highest + 1e-13).all()


# The knots and slopes of PLIF, seen through log p(x) - log p(0) = f(x) - f(0).


def plif_difference(x, raw, bound):
    pairs = torch.stack([x, torch.zeros_like(x)], -1)
    log_p = maps.plif(pairs, raw, bound, log=True)
    return log_p[..., 0] - log_p[..., 1]


@pytest.mark.parametrize("knots", [1, 2, 7, 1000])
def test_plif_is_the_curve_of_its_slopes(knots):
    raw, bound = torch.randn(knots, dtype=torch.float64), 3.0
    x = torch.linspace(-9, 9, 1001, dtype=torch.float64)
    curve = rows.plif_curve(np.append(x.numpy(), 0.0), raw.numpy(), bound)
    expected = torch.from_numpy(curve[:-1] - curve[-1])
    assert_close(plif_difference(x, raw, bound), expected, rtol=1e-11, atol=1e-12)

"""Gradients: finite differences in float64, closed forms, and what is kept at kinks and ties.

Backward and forward, one and in batches, first and second.
"""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.autograd.functional import hessian, jacobian

from sparse_attn import functional as maps

from .cases import (
    CASES,
    CHECK,
    LEARNABLE,
    SLOPES,
    UNITS,
    assert_close,
    calm,
    cases,
    each,
    finite,
    forms,
    function_of,
    random_mask,
    random_scores,
    smooth_scores,
)

# of PyTorch's own rules: for forward mode, and for operators without a rule for batches
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]
EVERY = {**CHECK, "check_forward_ad": True, "check_batched_grad": True}
masks = pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])


def tensor(value, **options):
    return torch.tensor(value, dtype=torch.float64, **options)


# Scores


@calm
@forms
@masks
def test_scores(case, log, masked):
    scores = smooth_scores(case, 4, 7).requires_grad_()
    mask = random_mask(4, 7) if masked else None
    assert gradcheck(lambda z: finite(case(z, mask=mask, log=log)), scores, **EVERY)


@cases
def test_no_gradient_leaves_the_simplex(case):
    """sum_i p_i = 1 gives columns of sum 0; a shift (a factor) that changes nothing, rows of 0."""
    row = smooth_scores(case, 9)
    jacobi, zero = jacobian(case, row), tensor([0.0] * 9)
    if case.mass == "one":
        assert_close(jacobi.sum(0), zero)
    if case.shift:
        assert_close(jacobi.sum(1), zero)
    if case.scale:
        assert_close(jacobi @ row, zero)


@cases
def test_a_gradient_exists(case):
    """The checks above would also pass for a constant."""
    row = smooth_scores(case, 9).mul(0.5).abs()
    assert jacobian(case, row).abs().max() > 1e-2


@forms
@pytest.mark.parametrize(
    ("name", "q", "row"),
    [
        ("sparsecone", 0.0, [-1.0, -1.0, -3.0]),
        ("sparsecone", 0.5, [2.0, 2.0, -5.5]),
        ("sparsehourglass", 0.0, [1.0, 1.0, -2.0]),
        ("sparsehourglass", 0.0, [0.0, 0.0, 0.0]),
    ],
)
def test_shared_maxima_are_constant(name, q, row, log):
    """The limit of an infinite scale: no slope is its own but 0, that of every row without ties."""
    scores, q = tensor(row, requires_grad=True), tensor(q, requires_grad=True)
    result = finite(function_of(name, log)(scores, q))
    for gradient in torch.autograd.grad(result, (scores, q), result.new([3.0, -1.0, 0.5])):
        assert (gradient == 0).all()


@calm
def test_second_derivatives(case):
    """Forward over reverse, as in torch.func, and reverse over reverse."""
    row, weights = smooth_scores(case, 6), torch.randn(6, dtype=torch.float64)

    def call(z):
        return (case(z) * weights).sum()

    expected = jacobian(lambda z: torch.func.grad(call)(z), row, create_graph=False)
    assert_close(torch.func.hessian(call)(row), expected)
    assert_close(hessian(call, row), expected)
    assert_close(hessian(call, row, vectorize=True), expected)


# Parameters

VALUES = [(p.mapping, {p.name: p.values[:4]}) for p in LEARNABLE]
VALUES += [("plif", {"raw_slopes": SLOPES}), ("monotone", UNITS)]


@pytest.mark.parametrize(("name", "params"), VALUES, ids=[name for name, _ in VALUES])
@forms
@masks
def test_parameters(name, params, log, masked):
    """Every tensor parameter, jointly with the scores, of the map and of its log form."""
    scores = random_scores(4, 7, scale=1.0).add(0.05).requires_grad_()
    mask = random_mask(4, 7) if masked else None
    tensors = [tensor(values, requires_grad=True) for values in params.values()]
    bound = {"bound": 3.0} if name == "plif" else {}

    def call(scores, *values):
        named = dict(zip(params, values, strict=True))
        return finite(function_of(name, log)(scores, **named, **bound, mask=mask))

    gradients = torch.autograd.grad(call(scores, *tensors).pow(2).sum(), tensors)
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients)
    assert gradcheck(call, (scores, *tensors), **EVERY)


def test_weights():
    """Also at a weight of zero, where dp_i/dw_i = e^{z_i} / sum w e^z is not zero."""
    scores = random_scores(3, 6, scale=1.0).requires_grad_()
    weights = torch.rand(3, 6, dtype=torch.float64).add(0.1)
    weights[0, 2] = weights[1, 0] = weights[1, 5] = 0
    weights.requires_grad_()
    assert gradcheck(maps.weighted_softmax, (scores, weights), **CHECK)
    keep = weights.detach() > 0

    def log_form(scores, weights):
        return torch.where(keep, maps.weighted_softmax(scores, weights, log=True), 0)

    assert gradcheck(log_form, (scores, weights.detach().clamp(min=0.1).requires_grad_()), **CHECK)


def test_the_gradient_of_eps_at_0():
    """dp_i/d eps = p_i (1/z_i^2 - sum_j p_j / z_j^2), also at the end of its range."""
    eps, z = tensor(0.0, requires_grad=True), tensor([1.0, -2.0, 0.5])
    p = maps.spherical_softmax(z, eps)
    (gradient,) = torch.autograd.grad(p[0], eps)
    assert_close(gradient, (p[0] * (1 - (p / z.square()).sum())).detach())


# entmax: alpha at, and near, its special values


@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-12, 1 + 1e-9, 1 + 1e-6, 1 + 1e-4])
def test_alpha_gradient_near_one(alpha):
    """At alpha = 1, dp_i / d alpha = p_i (sum_j p_j log^2 p_j - log^2 p_i) / 2."""
    scores, cotangent = random_scores(4, 6, scale=1.0), random_scores(4, 6)
    # The gradient moves by its own slope in alpha, of the order of log(p)^4.
    slack, alpha = 1e-9 + 500 * (alpha - 1), tensor(alpha, requires_grad=True)
    (gradient,) = torch.autograd.grad(maps.entmax(scores, alpha), alpha, cotangent)
    p, log_p = scores.softmax(-1), scores.log_softmax(-1)
    limit = p * ((p * log_p**2).sum(-1, keepdim=True) - log_p**2) / 2
    assert_close(gradient, (limit * cotangent).sum(), rtol=0, atol=slack)


@pytest.mark.parametrize("alpha", [1 + 1e-4, 1.01, 1.02, 1.5, 2 - 1e-4])
def test_alpha_gradient(alpha):
    scores = random_scores(3, 8, scale=1.0).requires_grad_()
    assert gradcheck(maps.entmax, (scores, tensor(alpha, requires_grad=True)), **CHECK)


@forms
@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-9, 1 + 1e-5, 2 - 1e-5, 2 - 1e-9, 2.0])
def test_score_gradient_near_the_ends_of_alpha(log, alpha):
    scores = random_scores(3, 8, scale=1.0).requires_grad_()
    assert gradcheck(lambda z: finite(maps.entmax(z, alpha, log=log)), scores, **CHECK)


# r-softmax


def authors_r_softmax(scores, r):
    """gmum/rsoftmax in a few lines: t has no gradient, the maximum that w is relative to has."""
    shifted = scores - scores.amax(-1, keepdim=True)
    t = -torch.quantile(shifted, r, dim=-1, keepdim=True).detach()
    mass = torch.relu(shifted + t) * torch.exp(shifted)
    return mass / mass.sum(-1, keepdim=True)


@pytest.mark.parametrize("r", [0.0, 0.15, 0.4, 0.6])
@pytest.mark.parametrize("n", [5, 33])
def test_detached_gradient_is_that_of_the_authors(r, n):
    scores, cotangent = random_scores(6, n).requires_grad_(), random_scores(6, n)
    exact, expected = maps.r_softmax(scores, r), authors_r_softmax(scores, r)
    r = tensor(r, requires_grad=True)
    p = maps.r_softmax(scores, r, gradient="detached")
    assert_close(p, expected)
    assert torch.equal(p, exact)
    gradient, of_r = torch.autograd.grad(p, (scores, r), cotangent, allow_unused=True)
    assert_close(gradient, torch.autograd.grad(expected, scores, cotangent)[0])
    assert (gradient - torch.autograd.grad(exact, scores, cotangent)[0]).abs().max() > 1e-3
    assert of_r is None or of_r == 0


# Kinks and ties: the gradient is one of the valid choices


@each([case for case in CASES if case.shift])
@pytest.mark.parametrize(
    "row", [[1.0, 1.0, 0.5, 0.0], [2.0, 0.5, 0.5, 0.5], [0.3] * 4, [1.0, 0.0, 0.0, -1.0]]
)
def test_ties_share_a_valid_gradient(case, row):
    """Every element of the generalised Jacobian has rows and columns of sum zero."""
    jacobi, zero = jacobian(case, tensor(row)), tensor([0.0] * 4)
    assert jacobi.isfinite().all()
    if case.mass == "one":
        assert_close(jacobi.sum(0), zero)
    assert_close(jacobi.sum(1), zero)


@pytest.mark.parametrize(("name", "params"), [("sparsemax", {}), ("sparsehourglass", {"q": 1e15})])
def test_a_support_boundary_takes_one_of_its_sides(name, params):
    """At [1, 0] the second entry is about to enter: J = c [[1, -1], [-1, 1]] / 2, 0 <= c <= 1."""
    jacobi = jacobian(lambda z: function_of(name)(z, **params), tensor([1.0, 0.0]))
    share = jacobi[0, 0] / 0.5
    assert 0 <= share <= 1
    assert_close(jacobi, share * tensor([[0.5, -0.5], [-0.5, 0.5]]))


def test_the_slope_of_abs_at_zero_is_zero():
    row = tensor([0.0, 1.0, -2.0], requires_grad=True)
    maps.softmax_abs(row)[1].backward()
    assert row.grad[0] == 0
    assert (row.grad[1:] != 0).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("t-softmax", 0.0), ("t-softmax", 0.5), ("r-softmax", 1.0), ("sparsecone", 0.1),
     ("sparsegen", 0.999)],
)  # fmt: skip
def test_a_one_hot_row_is_flat(name, value):
    """A unique maximum far above the rest: p is constant around it, down to exact zeros."""
    jacobi = jacobian(lambda z: function_of(name)(z, value), tensor([-1.0, -5.0, -3.0]))
    assert (jacobi == 0).all()


def test_an_infinite_t_has_the_gradient_of_softmax():
    row, t = random_scores(7), tensor(math.inf, requires_grad=True)
    jacobi = jacobian(lambda z: maps.t_softmax(z, t.detach()), row)
    assert_close(jacobi, jacobian(lambda z: z.softmax(-1), row))
    (gradient,) = torch.autograd.grad(maps.t_softmax(row, t).pow(2).sum(), t)
    assert gradient == 0


@pytest.mark.parametrize(
    ("name", "value"), [("r-softmax", 0.0), ("r-softmax", 1.0), ("t-softmax", 0.0)]
)
def test_gradients_at_the_end_of_a_range_are_finite(name, value):
    value, scores = tensor(value, requires_grad=True), random_scores(3, 6).requires_grad_()
    p = function_of(name)(scores, value)
    for gradient in torch.autograd.grad(p.pow(2).sum(), (scores, value)):
        assert gradient.isfinite().all()

"""Gradients: finite differences in float64, closed forms, and what is kept at kinks and ties."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.autograd.functional import jacobian

from sparse_attn import functional as maps

from .cases import (
    CALM,
    CASES,
    FLOAT64,
    SLOPES,
    UNITS,
    random_mask,
    random_scores,
    smooth_scores,
)

cases = pytest.mark.parametrize("case", CASES, ids=str)
calm = pytest.mark.parametrize("case", CALM, ids=str)

# gradcheck: central differences with step 1e-6 are good to about 1e-9, its defaults ask for 1e-5.
CHECK = {"atol": 1e-6, "rtol": 1e-4}


def finite(log_p: torch.Tensor) -> torch.Tensor:
    """log p with its -inf entries, where there is nothing to differentiate, as zeros."""
    return torch.where(log_p > -math.inf, log_p, 0)


# Scores


@calm
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_scores(case, masked):
    scores = smooth_scores(case, 4, 7).requires_grad_()
    mask = random_mask(4, 7) if masked else None
    assert gradcheck(lambda z: case(z, mask=mask), scores, **CHECK)


@calm
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_scores_of_the_log_form(case, masked):
    scores = smooth_scores(case, 4, 7).requires_grad_()
    mask = random_mask(4, 7) if masked else None
    assert gradcheck(lambda z: finite(case(z, mask=mask, log=True)), scores, **CHECK)


@cases
def test_no_gradient_leaves_the_simplex(case):
    """sum_i p_i = 1 gives columns of sum 0; a shift (a factor) that changes nothing, rows of 0."""
    row = smooth_scores(case, 9)
    jacobi = jacobian(case, row)
    zero = torch.zeros(9, dtype=torch.float64)
    torch.testing.assert_close(jacobi.sum(0), zero, **FLOAT64)
    if case.shift:
        torch.testing.assert_close(jacobi.sum(1), zero, **FLOAT64)
    if case.scale:
        torch.testing.assert_close(jacobi @ row, zero, **FLOAT64)


@cases
def test_a_gradient_exists(case):
    """The checks above would also pass for a constant."""
    row = smooth_scores(case, 9).mul(0.5).abs()
    assert jacobian(case, row).abs().max() > 1e-2


@pytest.mark.parametrize("log", [False, True])
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
    scores = torch.tensor(row, dtype=torch.float64, requires_grad=True)
    q = torch.tensor(q, dtype=torch.float64, requires_grad=True)
    result = finite(getattr(maps, f"log_{name}" if log else name)(scores, q))
    for gradient in torch.autograd.grad(result, (scores, q), result.new([3.0, -1.0, 0.5])):
        assert (gradient == 0).all()


TINY = [[2.0**-133, 2.0**-125], [2.0**-131, 2.0**-126, -(2.0**-133), 2.0**-132], [2.0**-125] * 3]


@pytest.mark.parametrize("row", TINY, ids=len)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("name", "parameter"),
    [("sparsecone", 0.0), ("sparsehourglass", 0.0), ("sparsecone", 2.0**-130), ("sparsegen", 0.5)],
)
def test_log_form_of_subnormal_scores(name, parameter, dtype, row):
    """log p has slopes of 1e40 here, which are infinite in these dtypes, but none that is NaN."""
    if dtype == torch.float16:
        row = [score * 2.0**110 for score in row]
    scores = torch.tensor(row, dtype=dtype)
    assert (scores != 0).all()
    upstream = torch.arange(1.0, 1 + len(row)).cos()

    def gradients(dtype):
        leaf = scores.to(dtype).requires_grad_()
        value = torch.tensor(parameter, dtype=dtype, requires_grad=True)
        log_p = finite(getattr(maps, f"log_{name}")(leaf, value))
        return torch.autograd.grad(log_p, (leaf, value), upstream.to(log_p))

    for gradient, exact in zip(gradients(dtype), gradients(torch.float64), strict=True):
        rounding = 1e-3 + 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(gradient, exact.to(gradient), rtol=rounding, atol=rounding)


# Parameters

PARAMETERS = [
    ("t_softmax", {"t": (0.8, 2.0, 5.0, 1000.0)}),
    ("r_softmax", {"r": (0.13, 0.37, 0.71, 0.95)}),
    ("sparsegen", {"lam": (0.6, -0.5, -3.0, -20.0)}),
    ("sparsecone", {"q": (0.2, 0.5, 1.0, 10.0)}),
    ("sparsehourglass", {"q": (0.2, 0.5, 1.0, 10.0)}),
    ("entmax", {"alpha": (1.1, 1.25, 1.5, 1.9)}),
    ("sigsoftmax", {"bias": (0.0, -4.0, 3.0, 1.0)}),
    ("spherical_softmax", {"eps": (0.0198, 0.5, 1.0, 30.0)}),
    ("temperature_softmax", {"temperature": (0.3, 0.8, 1.0, 4.0)}),
    ("plif", {"raw_slopes": SLOPES}),
    ("monotone", UNITS),
]


@pytest.mark.parametrize(("name", "params"), PARAMETERS, ids=[name for name, _ in PARAMETERS])
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_parameters(name, params, masked):
    """Every tensor parameter, jointly with the scores, of the map and of its log form."""
    scores = random_scores(4, 7, scale=1.0).add(0.05).requires_grad_()
    mask = random_mask(4, 7) if masked else None
    tensors = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in params.values()]
    bound = {"bound": 3.0} if name == "plif" else {}

    def probabilities(scores, *values):
        named = dict(zip(params, values, strict=True))
        return getattr(maps, name)(scores, **named, **bound, mask=mask)

    def log_probabilities(scores, *values):
        named = dict(zip(params, values, strict=True))
        return finite(getattr(maps, f"log_{name}")(scores, **named, **bound, mask=mask))

    gradients = torch.autograd.grad(probabilities(scores, *tensors).pow(2).sum(), tensors)
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients)
    assert gradcheck(probabilities, (scores, *tensors), **CHECK)
    assert gradcheck(log_probabilities, (scores, *tensors), **CHECK)


def test_weights():
    """Also at a weight of zero, where dp_i/dw_i = e^{z_i} / sum w e^z is not zero."""
    scores = random_scores(3, 6, scale=1.0).requires_grad_()
    weights = torch.rand(3, 6, dtype=torch.float64).add(0.1)
    weights[0, 2] = weights[1, 0] = weights[1, 5] = 0
    weights.requires_grad_()
    assert gradcheck(maps.weighted_softmax, (scores, weights), **CHECK)
    keep = weights.detach() > 0

    def log_form(scores, weights):
        return torch.where(keep, maps.log_weighted_softmax(scores, weights), 0)

    assert gradcheck(log_form, (scores, weights.detach().clamp(min=0.1).requires_grad_()), **CHECK)


def test_a_parameter_learns_from_constant_scores():
    for name, params in PARAMETERS[:9]:
        ((argument, values),) = params.items()
        value = torch.tensor(values[1], dtype=torch.float64, requires_grad=True)
        scores = torch.tensor([0.9, 0.2, 0.5, 1.4], dtype=torch.float64)
        getattr(maps, name)(scores, **{argument: value}).pow(2).sum().backward()
        assert value.grad.abs() > 1e-5, name


def test_t_gradient_in_closed_form():
    """d log p_i / dt = 1/w_i - sum_k p_k / w_k over the support."""
    row, t = random_scores(12), torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    p = maps.t_softmax(row, t).detach()
    weights = (row - row.max() + t.detach()).clamp(min=0)
    inside = weights > 0
    inverse = torch.where(inside, 1 / weights, 0)
    for index in inside.nonzero():
        (gradient,) = torch.autograd.grad(maps.log_t_softmax(row, t)[index], t)
        expected = inverse[index] - (p * inverse).sum()
        torch.testing.assert_close(gradient[None], expected, rtol=1e-9, atol=1e-10)


def test_sparsemax_gradient_in_closed_form():
    """J v = s (v - mean of v over the support)."""
    scores, cotangent = random_scores(5, 40, scale=0.5).requires_grad_(), random_scores(5, 40)
    p = maps.sparsemax(scores)
    (gradient,) = torch.autograd.grad(p, scores, cotangent)
    support = (p > 0).double()
    mean = (support * cotangent).sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
    torch.testing.assert_close(gradient, support * (cotangent - mean), **FLOAT64)


def test_sparsemax_is_the_gradient_of_its_conjugate():
    """The gradient of <p, z> - |p|^2 / 2 at p = sparsemax(z) is p itself."""
    scores = random_scores(5, 40, scale=0.5).requires_grad_()
    p = maps.sparsemax(scores)
    (gradient,) = torch.autograd.grad((p * (scores - p / 2)).sum(), scores)
    torch.testing.assert_close(gradient, p.detach(), **FLOAT64)


# entmax: alpha at, and near, its special values


@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-12, 1 + 1e-9, 1 + 1e-6, 1 + 1e-4])
def test_alpha_gradient_near_one(alpha):
    """At alpha = 1, dp_i / d alpha = p_i (sum_j p_j log^2 p_j - log^2 p_i) / 2."""
    scores, cotangent = random_scores(4, 6, scale=1.0), random_scores(4, 6)
    alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(maps.entmax(scores, alpha), alpha, cotangent)
    p, log_p = scores.softmax(-1), scores.log_softmax(-1)
    limit = p * ((p * log_p**2).sum(-1, keepdim=True) - log_p**2) / 2
    expected = (limit * cotangent).sum()
    # The gradient moves by its own slope in alpha, of the order of log(p)^4.
    slack = 1e-9 + 500 * (alpha.item() - 1)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=slack)


@pytest.mark.parametrize("alpha", [1 + 1e-4, 1.01, 1.02, 1.5, 2 - 1e-4])
def test_alpha_gradient(alpha):
    scores = random_scores(3, 8, scale=1.0).requires_grad_()
    alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(maps.entmax, (scores, alpha), **CHECK)


@pytest.mark.parametrize("form", [maps.entmax, maps.log_entmax])
@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-9, 1 + 1e-5, 2 - 1e-5, 2 - 1e-9, 2.0])
def test_score_gradient_near_the_ends_of_alpha(form, alpha):
    scores = random_scores(3, 8, scale=1.0).requires_grad_()
    assert gradcheck(lambda z: finite(form(z, alpha)), scores, **CHECK)


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
    p, expected = maps.r_softmax(scores, r, gradient="detached"), authors_r_softmax(scores, r)
    torch.testing.assert_close(p, expected, **FLOAT64)
    assert torch.equal(p, maps.r_softmax(scores, r))
    (exact,) = torch.autograd.grad(maps.r_softmax(scores, r), scores, cotangent)
    (gradient,) = torch.autograd.grad(p, scores, cotangent)
    (expected,) = torch.autograd.grad(expected, scores, cotangent)
    torch.testing.assert_close(gradient, expected, **FLOAT64)
    assert (gradient - exact).abs().max() > 1e-3


def test_detached_gradient_does_not_reach_r():
    r = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    scores = random_scores(6, 9).requires_grad_()
    p = maps.r_softmax(scores, r, gradient="detached")
    (gradient,) = torch.autograd.grad(p.pow(2).sum(), r, allow_unused=True)
    assert gradient is None or gradient == 0


# Kinks and ties: the gradient is one of the valid choices


@pytest.mark.parametrize("case", [c for c in CASES if c.shift], ids=str)
@pytest.mark.parametrize(
    "row", [[1.0, 1.0, 0.5, 0.0], [2.0, 0.5, 0.5, 0.5], [0.3] * 4, [1.0, 0.0, 0.0, -1.0]]
)
def test_ties_share_a_valid_gradient(case, row):
    """Every element of the generalised Jacobian has rows and columns of sum zero."""
    jacobi = jacobian(case, torch.tensor(row, dtype=torch.float64))
    assert jacobi.isfinite().all()
    zero = torch.zeros(4, dtype=torch.float64)
    torch.testing.assert_close(jacobi.sum(0), zero, **FLOAT64)
    torch.testing.assert_close(jacobi.sum(1), zero, **FLOAT64)


@pytest.mark.parametrize("name", ["sparsemax", "sparsehourglass"])
def test_a_support_boundary_takes_one_of_its_sides(name):
    """At [1, 0] the second entry is about to enter: J = c [[1, -1], [-1, 1]] / 2, 0 <= c <= 1."""
    params = {"q": 1e15} if name == "sparsehourglass" else {}
    row = torch.tensor([1.0, 0.0], dtype=torch.float64)
    jacobi = jacobian(lambda z: getattr(maps, name)(z, **params), row)
    side = torch.tensor([[0.5, -0.5], [-0.5, 0.5]], dtype=torch.float64)
    share = jacobi[0, 0] / 0.5
    assert 0 <= share <= 1
    torch.testing.assert_close(jacobi, share * side, **FLOAT64)


def test_the_slope_of_abs_at_zero_is_zero():
    row = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64, requires_grad=True)
    maps.softmax_abs(row)[1].backward()
    assert row.grad[0] == 0
    assert (row.grad[1:] != 0).all()


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("t_softmax", {"t": 0.0}),
        ("t_softmax", {"t": 0.5}),
        ("r_softmax", {"r": 1.0}),
        ("sparsecone", {"q": 0.1}),
        ("sparsegen", {"lam": 0.999}),
    ],
)
def test_a_one_hot_row_is_flat(name, params):
    """A unique maximum far above the rest: p is constant around it, down to exact zeros."""
    row = torch.tensor([-1.0, -5.0, -3.0], dtype=torch.float64)
    jacobi = jacobian(lambda z: getattr(maps, name)(z, **params), row)
    assert (jacobi == 0).all()


def test_an_infinite_t_has_the_gradient_of_softmax():
    row = random_scores(7)
    t = torch.tensor(math.inf, dtype=torch.float64, requires_grad=True)
    jacobi = jacobian(lambda z: maps.t_softmax(z, t.detach()), row)
    torch.testing.assert_close(jacobi, jacobian(lambda z: z.softmax(-1), row), **FLOAT64)
    (gradient,) = torch.autograd.grad(maps.t_softmax(row, t).pow(2).sum(), t)
    assert gradient == 0


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [("r_softmax", "r", 0.0), ("r_softmax", "r", 1.0), ("t_softmax", "t", 0.0)],
)
def test_gradients_at_the_end_of_a_range_are_finite(name, argument, value):
    value = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    scores = random_scores(3, 6).requires_grad_()
    p = getattr(maps, name)(scores, **{argument: value})
    for gradient in torch.autograd.grad(p.pow(2).sum(), (scores, value)):
        assert gradient.isfinite().all()

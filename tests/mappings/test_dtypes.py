"""Half precision in, half precision out, float32 inside; and scores of any finite size."""

import math

import pytest
import torch

from sparse_attn import functional as maps

from .cases import (
    CASES,
    LEARNABLE,
    assert_close,
    cases,
    each,
    one_each,
    random_mask,
    random_scores,
)

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
MOST = torch.finfo(torch.float32).max


def budget(dtype: torch.dtype, scale: float = 1.0) -> dict[str, float]:
    """The result is rounded once (half a unit), after a computation in float32.

    The float32 part: scores up to 12 rounded at 6e-8 make a relative error of about 1e-6 in e^z
    (and so in p), times ten for thresholds and sums; 2e-6 absolute near the threshold of a sparse
    map, and for the subnormal numbers of float16.
    """
    rounding = torch.finfo(dtype).eps / 2 if dtype != torch.float32 else 0.0
    return {"rtol": rounding + 1e-5 * scale, "atol": 2e-6 * scale}


@cases
@dtypes
@pytest.mark.parametrize("n", [1, 64, 513])
def test_values_in_low_precision(case, dtype, n):
    scores, mask = random_scores(4, n, dtype=dtype), random_mask(4, n)
    p, log_p = case(scores, mask=mask), case(scores, mask=mask, log=True)
    assert p.dtype == log_p.dtype == dtype
    expected = case.log_rows(scores, mask)
    assert_close(p.double(), expected.exp(), **budget(dtype))
    assert (p[~mask] == 0).all()
    assert (log_p[~mask] == -math.inf).all()
    # An error of 2e-6 in p is one of 2e-5 in log p where p > 0.1.
    clear = mask & (expected > math.log(0.1)) if case.zeros else mask
    assert_close(log_p[clear].double(), expected[clear], **budget(dtype, 10))


# The weights of this case are made of the scores, so two rounded gradients meet outside the map.
@each([case for case in CASES if case.name != "weighted-softmax"])
@dtypes
def test_gradients_in_low_precision(case, dtype):
    scores, cotangent = random_scores(4, 33, dtype=dtype), random_scores(4, 33, dtype=dtype)

    def gradient(dtype):
        leaf = scores.to(dtype).requires_grad_()
        return torch.autograd.grad(case(leaf), leaf, cotangent.to(dtype))[0]

    result = gradient(dtype)
    assert result.dtype == dtype
    # Sums of cotangents up to 10; alpha = 1.2 divides by small p.
    assert_close(result.double(), gradient(torch.float64), **budget(dtype, 10))


@one_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(case, dtype):
    scores, mask = random_scores(3, 20, dtype=dtype), random_mask(3, 20)
    expected = case(scores, mask=mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = case(scores, mask=mask)
    assert result.dtype == dtype
    assert torch.equal(result, expected)


@pytest.mark.parametrize("parameter", LEARNABLE, ids=str)
@pytest.mark.parametrize("value_dtype", [torch.float32, torch.float64])
def test_parameters_keep_their_precision(parameter, value_dtype):
    """bfloat16 scores with a float, or a wider tensor: the parameter is not rounded to bfloat16."""
    scores, value = random_scores(4, 30, dtype=torch.bfloat16), parameter.values[1]
    expected = parameter(scores.float(), value).bfloat16()
    assert torch.equal(parameter(scores, value), expected)
    assert torch.equal(parameter(scores, torch.tensor(value, dtype=value_dtype)), expected)
    scores = scores.half()
    assert torch.equal(maps.weighted_softmax(scores, 1e-8), maps.softmax(scores))


# Large scores

HUGE = [
    [1e4, -1e4, 0.0, 3.0],
    [-1e4, -1e4, -9999.0, -1e4],
    [1e4, 9999.0, 9998.0, 1e4],
    [0.0, 1e-4, -1e4, 300.0],
    [1e4],
    [-1e4],
]


@cases
def test_log_probabilities_of_large_scores(case):
    """Finite in float32 exactly where the float64 reference is, and equal to it."""
    for row in HUGE:
        scores = torch.tensor([row], dtype=torch.float32)
        p, log_p = case(scores), case(scores, log=True)
        expected = case.log_rows(scores)
        assert torch.equal(log_p.isfinite(), expected.isfinite())
        # Scores of 1e4 are rounded at 5e-4 by the least float32 operation on them.
        assert_close(log_p.double(), expected, rtol=1e-6, atol=2e-3)
        assert_close(p.double(), expected.exp(), rtol=2e-3, atol=1e-6)


@cases
@pytest.mark.parametrize("n", [1, 64, 1000])
def test_float16_scores_up_to_its_end(case, n):
    """z^2, sums and e^z all pass 65504 on the way; p does not notice."""
    scores = random_scores(4, n).clamp(-4, 4).mul(1.5e4).half()
    p = case(scores)
    assert p.isfinite().all()
    # Scores of 6e4 are rounded at 2e-3 inside.
    assert_close(p.double(), case.log_rows(scores).exp(), rtol=1e-2, atol=1e-5)
    leaf = scores.requires_grad_()
    size = p.max().clamp(min=1).float()  # relu of 6e4 has a square of slope 1.2e5
    case(leaf).float().div(size).pow(2).sum().backward()
    assert leaf.grad.isfinite().all()


@one_each
def test_finite_logarithms_stay_finite_in_float16(case):
    """-1.2e5 is below float16, and becomes its end; -inf would make the entry impossible."""
    scores = torch.tensor([[6e4, -6e4, 0.0, 5.9e4]], dtype=torch.float16)
    log_p = case(scores, log=True)
    assert torch.equal(log_p.isfinite(), case.log_rows(scores).isfinite())
    assert not log_p.isnan().any()
    if case.name == "softmax":
        assert log_p[0, 1] == -65504


@pytest.mark.parametrize(
    ("function", "arguments", "row", "expected"),
    [
        (maps.r_softmax, (0.15,), [MOST, -MOST, -MOST], [1, 0, 0]),
        (maps.t_softmax, (math.inf,), [MOST, -MOST, MOST], [0.5, 0, 0.5]),
        (maps.sparsehourglass, (0.0,), [MOST, MOST, 0], [0.5, 0.5, 0]),
        (maps.sparsecone, (0.0,), [MOST, MOST, 0], [0.5, 0.5, 0]),
        (maps.sparsehourglass, (1e300,), [0.25, 0, 0.75], [0.25, 0, 0.75]),
        (maps.sparsecone, (MOST,), [0.25, 0, 0.75], [0.25, 0, 0.75]),
        (maps.sigsoftmax, (), [-MOST, -MOST], [0.5, 0.5]),
        (maps.temperature_softmax, (1e-3,), [MOST, 0, MOST], [0.5, 0, 0.5]),
        (maps.plif, (torch.tensor([3.0, 3.0]),), [MOST, 0, MOST], [0.5, 0, 0.5]),
        (maps.spherical_softmax, (1e300,), [0, 1, 2], [1 / 3, 1 / 3, 1 / 3]),
        (maps.weighted_softmax, (torch.tensor([MOST, MOST]),), [0, 0], [0.5, 0.5]),
        (maps.weighted_softmax, (1e300,), [0, 0], [0.5, 0.5]),
        (maps.weighted_softmax, (1e-300,), [0, 0], [0.5, 0.5]),
    ],
)
def test_what_overflows_float32_on_the_way_is_no_nan(function, arguments, row, expected):
    p = function(torch.tensor(row, dtype=torch.float32), *arguments)
    torch.testing.assert_close(p, torch.tensor(expected, dtype=torch.float32))


def test_an_overflowing_temperature_still_learns():
    temperature = torch.tensor(1e-3, requires_grad=True)
    p = maps.temperature_softmax(torch.tensor([[MOST, 0.0], [1e-3, 0.0]]), temperature)
    (gradient,) = torch.autograd.grad(p[:, 0].sum(), temperature)
    assert gradient.isfinite()
    assert gradient != 0


# Small scores, and sums of many


@cases
def test_small_scores_do_not_vanish(case):
    """Squares of 1e-20 underflow in float32."""
    scores = torch.tensor([[1e-20, 3e-20, -2e-20, 0.0]], dtype=torch.float32)
    assert_close(case(scores).double(), case.log_rows(scores).exp(), **budget(torch.float32))


def test_subnormal_scores():
    p = maps.spherical_softmax(torch.tensor([1e-41, 5e-42, 0.0]), 0.0)
    # twelve bits of 5e-42 are left
    assert_close(p, torch.tensor([0.8, 0.2, 0.0]), rtol=1e-3, atol=0)
    single = torch.tensor([1e-45, 0.0, 0.0], requires_grad=True)
    assert torch.autograd.grad(maps.spherical_softmax(single, 0.0)[0], single)[0].isfinite().all()
    scores = torch.tensor([2.0, 2.0, 1.0], requires_grad=True)
    log_p = maps.t_softmax(scores, 1.4e-45, log=True)
    assert torch.autograd.grad(log_p[0], scores)[0].isfinite().all()


def test_sparsemax_of_a_plateau_in_float32():
    scores = torch.full((2048,), -0.999)
    scores[0] = 0.0
    p, exact = maps.sparsemax(scores), maps.sparsemax(scores.double())
    # tau is a sum of 2048 differences, each right to a float32 ulp of 1
    assert_close(p.double(), exact, rtol=0, atol=6e-8)
    assert abs(p.double().sum().item() - 1) < 2048 * 6e-8

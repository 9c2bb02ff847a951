"""Half precision in, half precision out, float32 inside; and scores of any finite size."""

import math

import numpy as np
import pytest
import torch

from sparse_attn import functional as maps

from .cases import CASES, ONE_EACH, random_mask, random_scores

cases = pytest.mark.parametrize("case", CASES, ids=str)
one_each = pytest.mark.parametrize("case", ONE_EACH, ids=str)
LOW = [torch.float32, torch.bfloat16, torch.float16]
dtypes = pytest.mark.parametrize("dtype", LOW, ids=str)


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
@pytest.mark.parametrize("n", [1, 5, 64, 513])
def test_probabilities_in_low_precision(case, dtype, n):
    scores, mask = random_scores(4, n, dtype=dtype), random_mask(4, n)
    p = case(scores, mask=mask)
    assert p.dtype == dtype
    expected = case.log_rows(scores, mask).exp()
    torch.testing.assert_close(p.double(), expected, **budget(dtype))
    assert (p[~mask] == 0).all()


@cases
@dtypes
@pytest.mark.parametrize("n", [1, 5, 64, 513])
def test_log_probabilities_in_low_precision(case, dtype, n):
    scores, mask = random_scores(4, n, dtype=dtype), random_mask(4, n)
    log_p = case(scores, mask=mask, log=True)
    assert log_p.dtype == dtype
    expected = case.log_rows(scores, mask)
    assert (log_p[~mask] == -math.inf).all()
    # An error of 2e-6 in p is one of 2e-5 in log p where p > 0.1.
    clear = mask & (expected > math.log(0.1)) if case.zeros else mask
    torch.testing.assert_close(log_p[clear].double(), expected[clear], **budget(dtype, 10))


# The weights of this case are made of the scores, so two rounded gradients meet outside the map.
@pytest.mark.parametrize("case", [c for c in CASES if c.name != "weighted-softmax"], ids=str)
@dtypes
def test_gradients_in_low_precision(case, dtype):
    scores, cotangent = random_scores(4, 33, dtype=dtype), random_scores(4, 33, dtype=dtype)

    def gradient(dtype):
        leaf = scores.to(dtype).requires_grad_()
        return torch.autograd.grad(case(leaf), leaf, cotangent.to(dtype))[0]

    result = gradient(dtype)
    assert result.dtype == dtype
    # Sums of cotangents up to 10; alpha = 1.2 divides by small p.
    torch.testing.assert_close(result.double(), gradient(torch.float64), **budget(dtype, 10))


@one_each
def test_double_stays_double(case):
    assert case(random_scores(3, 5)).dtype == torch.float64
    assert case(random_scores(3, 5), log=True).dtype == torch.float64


@one_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(case, dtype):
    scores, mask = random_scores(3, 20, dtype=dtype), random_mask(3, 20)
    expected = case(scores, mask=mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = case(scores, mask=mask)
    assert result.dtype == dtype
    assert torch.equal(result, expected)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("t_softmax", {"t": 2.0}),
        ("r_softmax", {"r": 0.15}),
        ("entmax", {"alpha": 1.3}),
        ("sigsoftmax", {"bias": 0.7}),
        ("sparsegen", {"lam": 0.3}),
        ("spherical_softmax", {"eps": 0.0198}),
        ("temperature_softmax", {"temperature": 0.3}),
    ],
)
@pytest.mark.parametrize("value_dtype", [torch.float32, torch.float64])
def test_parameters_keep_their_precision(name, params, value_dtype):
    """bfloat16 scores with a float, or a wider tensor: the parameter is not rounded to bfloat16."""
    scores = random_scores(4, 30, dtype=torch.bfloat16)
    ((argument, value),) = params.items()
    call = getattr(maps, name)
    expected = call(scores.float(), **params).bfloat16()
    assert torch.equal(call(scores, **params), expected)
    tensor = torch.tensor(value, dtype=value_dtype)
    result = call(scores, **{argument: tensor})
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, expected)


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
@pytest.mark.parametrize("row", HUGE, ids=str)
def test_log_probabilities_of_large_scores(case, row):
    """Finite in float32 exactly where the float64 reference is, and equal to it."""
    scores = torch.tensor([row], dtype=torch.float32)
    p, log_p = case(scores), case(scores, log=True)
    expected = case.log_rows(scores)
    assert torch.equal(log_p.isfinite(), expected.isfinite())
    # Scores of 1e4 are rounded at 5e-4 by the least float32 operation on them.
    torch.testing.assert_close(log_p.double(), expected, rtol=1e-6, atol=2e-3)
    torch.testing.assert_close(p.double(), expected.exp(), rtol=2e-3, atol=1e-6)


@cases
@pytest.mark.parametrize("n", [1, 2, 64, 1000])
def test_float16_scores_up_to_its_end(case, n):
    """z^2, sums and e^z all pass 65504 on the way; p does not notice."""
    scores = random_scores(4, n).clamp(-4, 4).mul(1.5e4).half()
    p = case(scores)
    assert p.isfinite().all()
    # Scores of 6e4 are rounded at 2e-3 inside.
    expected = case.log_rows(scores).exp()
    torch.testing.assert_close(p.double(), expected, rtol=1e-2, atol=1e-5)
    leaf = scores.requires_grad_()
    case(leaf).float().pow(2).sum().backward()
    assert leaf.grad.isfinite().all()


@one_each
def test_finite_logarithms_stay_finite_in_float16(case):
    """-1.2e5 is below float16; as -inf it would claim that the entry is impossible."""
    scores = torch.tensor([[6e4, -6e4, 0.0, 5.9e4]], dtype=torch.float16)
    log_p = case(scores, log=True)
    assert torch.equal(log_p.isfinite(), case.log_rows(scores).isfinite())
    assert not log_p.isnan().any()


def test_float16_logarithms_saturate():
    scores = torch.tensor([6e4, -6e4], dtype=torch.float16)
    expected = torch.tensor([0.0, -65504.0], dtype=torch.float16)
    assert torch.equal(maps.log_softmax(scores), expected)
    mask = torch.tensor([True, False])
    expected[1] = -math.inf
    assert torch.equal(maps.log_softmax(scores, mask=mask), expected)


@cases
def test_small_scores_do_not_vanish(case):
    """Squares of 1e-20 underflow in float32."""
    scores = torch.tensor([[1e-20, 3e-20, -2e-20, 0.0]], dtype=torch.float32)
    expected = case.log_rows(scores).exp()
    torch.testing.assert_close(case(scores).double(), expected, **budget(torch.float32))


def test_half_precision_sums_of_long_rows():
    """2049 equal probabilities of 1/2049: float16 could not even count them."""
    for case in CASES:
        p = case(torch.ones(2049, dtype=torch.float16))
        np.testing.assert_array_equal(p.numpy(), np.float16(1 / 2049), err_msg=str(case))

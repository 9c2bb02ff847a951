"""Outputs and gradients against the reference: to rounding in float64, by budget elsewhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparse_attn.kernels import dispatch

from . import calls
from .backends import CPU, CUDA, FLEX, FLEX_CUDA, MARKS, TRITON, each, on
from .calls import ENTMAX, ONE, SHAPES, T
from .problems import (
    SETTINGS,
    SOLVERS,
    Inputs,
    Problem,
    assert_equal_to_rounding,
    assert_within_budget,
    solve,
    vary,
)

half_dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def half(case: Problem) -> Problem:
    """Smaller scores: q k^T of the reference must stay inside float16."""
    return case if case.spread <= 3 else replace(case, spread=9.0)


@pytest.mark.parametrize(
    "case",
    [
        *(*calls.SIZES, *calls.ODD, *calls.FORMS, *calls.OPTIONS, *calls.LONG),
        *(*calls.LEARNING, *calls.SINKS, *calls.BIASES),
        *(Problem(*s, mask="BHQK", key_lengths=(7, 20), options={"causal": True})
          for s in SETTINGS),
        *(Problem(*ENTMAX, dim=dim, value_dim=other)
          for dim, other in ((8, 24), (24, 8), (300, 3), (1, 1))),
    ],
    ids=str,
)  # fmt: skip
def test_float64_on_the_cpu(case):
    """With the gradient of a bias, whatever its shape."""
    assert_equal_to_rounding(case, "cpu")


@on(
    [
        *(*calls.ODD, *calls.FORMS, *calls.OPTIONS, *calls.LONG, *calls.LEARNING, *calls.SINKS),
        *(*calls.TILED, *calls.SEARCHED),
        *(*vary(Problem(*T), mask=SHAPES), *vary(Problem(*ENTMAX), bias=SHAPES)),
    ],
    calls.INTERPRETED,
)
def test_float32(backend, case):
    assert_within_budget(case, backend.impl, torch.float32, backend.device)


@half_dtypes
@on(
    [
        *(Problem(*s, queries=63, keys=70) for s in SETTINGS),
        *map(half, [*calls.FORMS, *calls.TILED]),
        *(case for case in calls.LEARNING if case.per_head),
    ],
    [
        *(Problem(*s, queries=5, keys=19, **ONE) for s in SOLVERS),
        *(calls.learning(*s, True, queries=63, keys=70) for s in calls.SUMMED),
        *vary(Problem(*calls.R, queries=63, keys=111), dim=[1, 8]),
        *(Problem(*s, queries=5, keys=150, **ONE) for s in SOLVERS),
    ],
    cpu=[],  # whose rounding is the next test
)
def test_half_precision(backend, case, dtype):
    if backend == TRITON and dtype == torch.bfloat16:
        pytest.skip("tl.dot of Triton 3.6's interpreter takes the bits of bfloat16 for integers")
    assert_within_budget(case, backend.impl, dtype, backend.device)


@on([], [Problem(*s, queries=5, keys=150, **ONE) for s in SOLVERS])
def test_no_index_overflows(backend, case, monkeypatch):
    from triton.runtime import interpreter

    options = interpreter.InterpreterOptions(sanitize_overflow=True)
    monkeypatch.setattr(interpreter.interpreter_builder, "options", options)
    backend.inputs(case).solve(backend.impl)


@half_dtypes
@pytest.mark.parametrize(
    "case", [*map(half, calls.FORMS[::4]), *calls.ODD, *calls.LEARNING[1::2]], ids=str
)
def test_half_precision_on_the_cpu_is_float32_rounded_once(case, dtype):
    """Nothing between the inputs and the results is rounded to half precision."""
    got = solve(case, "cpu", dtype, dtype, "cpu")
    expected = solve(case, "cpu", dtype, torch.float32, "cpu")
    for name, wanted in expected.items():
        assert torch.equal(got[name], wanted.to(got[name].dtype)), name


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        pytest.param(backend, case, marks=MARKS[backend], id=f"{backend}-{case}")
        for backend in (FLEX, FLEX_CUDA)
        for case in (
            Problem("sigsoftmax", {"bias": 0.5}, bias="HQK", mask="B11K"),
            Problem("taylor-softmax", {}, heads=4, options={"causal": True, "softcap": 3.0}),
            Problem("spherical-softmax", {"eps": 0.25}, options={"causal": True}),
            Problem("normalized-relu", {}, keys=30, options={"window": 4}),
        )
    ],
)
def test_flex(backend, case):
    """Its CPU kernel has no backward pass, so only the output is looked at there."""
    if backend.device == "cuda":
        assert_within_budget(case, "flex", torch.float32, "cuda")
        return
    truth = Inputs(case, torch.float32, torch.float64)
    inputs = Inputs(case)
    with torch.no_grad():
        expected = truth.attend("reference")
        torch.testing.assert_close(inputs.attend("flex").double(), expected, rtol=1e-5, atol=1e-5)


def test_the_backends_are_the_ones_the_project_has():
    assert {b.impl for b in (CPU, TRITON, CUDA, FLEX)} | {"reference"} == {
        *dispatch.IMPLEMENTATIONS
    }


# Arguments of other kinds


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
@each()
def test_a_bias_of_another_dtype(backend, stored):
    """A float32 bias of learned positions beside half-precision states, and the reverse."""
    case = Problem(*calls.R, batch=1, queries=5, keys=7, bias="HQK")
    inputs = Inputs(case, torch.bfloat16, torch.float32, backend.device)
    bias = inputs.arguments["bias"]
    expected = inputs.solve("reference")
    got = inputs.solve(backend.impl, bias=bias.to(stored))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@each(CPU, TRITON)
def test_key_lengths_of_any_stride(backend):
    inputs = backend.inputs(Problem("softmax", batch=4, queries=8, keys=8, dim=16))
    wide = torch.tensor([[3, 8], [5, 8], [2, 8], [7, 8]])
    for lengths in (wide[:, 0], torch.tensor([3]).expand(4)):
        got, want = (inputs.attend(i, key_lengths=lengths) for i in (backend.impl, "reference"))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@each(CPU, TRITON)
def test_numbers_that_are_large_or_of_numpy(backend):
    inputs = backend.inputs(Problem("softmax", queries=9, keys=9, dim=16))
    for window in (2**31, 2**63 - 1):
        got = inputs.attend(backend.impl, window=window)
        torch.testing.assert_close(got, inputs.attend(backend.impl))
    expected = inputs.attend(backend.impl, window=3, scale=0.5, softcap=4.0)
    numbers = {"window": np.int64(3), "scale": np.float32(0.5), "softcap": np.float32(4)}
    assert torch.equal(inputs.attend(backend.impl, **numbers, dropout=np.float32(0)), expected)


# Scores that are hard for a number format


@each(TRITON)
def test_nearly_one_hot_long_rows(backend):
    """A support narrower than the rounding of the maximum still holds the maximum."""
    params = {"lam": 0.99999}
    case = Problem("sparsegen", params, queries=64, keys=1100, dim=16, spread=1.0, **ONE)
    inputs = backend.inputs(replace(case, options={"scale": 50.0}))
    got, want = (inputs.attend(impl) for impl in (backend.impl, "reference"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@each(TRITON)
def test_tf32_switched_on_by_either_api(backend):
    """Transformers' TrainingArguments(tf32=True) uses the new one."""
    from sparse_attn.kernels.triton.plan import product_precision

    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        assert product_precision(torch.float32) == "tf32x3"
        matmul.fp32_precision = "tf32"
        assert product_precision(torch.float32) == "tf32"
        backend.inputs(Problem("softmax", queries=8, keys=8, dim=16, **ONE)).attend(backend.impl)
    finally:
        matmul.fp32_precision = before


@each()
@pytest.mark.parametrize(
    ("name", "params"), [("r-softmax", {"r": 0.90625}), ("t-softmax", {"t": 1e-5})]
)
def test_half_gradients_of_nearly_equal_scores_are_finite(backend, name, params):
    """Their slopes, of the order of 1 / t, are beyond float16."""
    case = Problem(name, params, **ONE, spread=1e-5)
    inputs = Inputs(case, torch.float16, torch.float16, backend.device)
    inputs.grad *= 0.01
    assert all(found.isfinite().all() for found in inputs.solve(backend.impl).values())

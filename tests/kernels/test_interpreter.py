"""The reductions of tests/interpreter.py are those of Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

import triton
import triton.language as tl
from triton.runtime.interpreter import ReduceOps

from tests.interpreter import generic_reduce, reduce_by_halves

from .backends import MARKS, TRITON

pytestmark = list(MARKS[TRITON])


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def total(a, b):
    return a + b


@triton.jit
def reduce_kernel(data, out, axis: tl.constexpr, length: tl.constexpr, combine: tl.constexpr):
    rows, columns = tl.arange(0, 4), tl.arange(0, length)
    found = tl.reduce(tl.load(data + rows[:, None] * length + columns), axis, combine)
    if axis is None:
        tl.store(out, found)
    elif axis == 0:
        tl.store(out + columns, found)
    else:
        tl.store(out + rows, found)


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize(
    ("combine", "dtype"), [(larger, torch.float32), (larger, torch.int32), (total, torch.int32)]
)
def test_halves(axis, combine, dtype, monkeypatch):
    data = (100 * torch.randn(4, 16)).to(dtype)
    if dtype.is_floating_point:
        data[1, 3] = math.nan
    found = {}
    for reduce in (generic_reduce, reduce_by_halves):
        monkeypatch.setattr(ReduceOps, "generic_reduce", reduce)
        found[reduce] = torch.zeros(16, dtype=dtype)
        reduce_kernel[(1,)](data, found[reduce], axis, 16, combine)
    assert found[generic_reduce].any()
    torch.testing.assert_close(*found.values(), rtol=0, atol=0, equal_nan=True)

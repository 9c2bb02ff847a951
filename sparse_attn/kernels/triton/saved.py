"""Row data that the forward kernel saves, and the first backward kernel for the second.

A row's numbers are adjacent, so that one address serves all; keys are stored as bit patterns.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.names import Gradient, Statistics

POINTWISE, WIDE = tl.constexpr(2), tl.constexpr(8)  # numbers per row
GRADIENTS = tl.constexpr(4)  # gamma, extra, and the gradients of parameter and sink


@triton.jit
def store_statistics(saved, row_ids, stats, MAP: tl.constexpr):
    if MAP.family == "pointwise":
        tl.store(saved + row_ids * POINTWISE, stats.a)
        tl.store(saved + row_ids * POINTWISE + 1, stats.b)
    else:
        row = saved + row_ids * WIDE
        tl.store(row, stats.a)
        tl.store(row + 1, stats.b)
        tl.store(row + 2, stats.c)
        tl.store(row + 3, stats.d)
        tl.store(row + 4, stats.e)
        tl.store(row + 5, stats.low.to(tl.float32, bitcast=True))
        tl.store(row + 6, stats.high.to(tl.float32, bitcast=True))
        tl.store(row + 7, stats.f)


@triton.jit
def load_statistics(saved, row_ids, inside, MAP: tl.constexpr):
    """Load row statistics; rows past the last get values that do not overflow."""
    if MAP.family == "pointwise":
        a = tl.load(saved + row_ids * POINTWISE, mask=inside, other=1.0)
        b = tl.load(saved + row_ids * POINTWISE + 1, mask=inside, other=0.0)
        none = (row_ids * 0).to(tl.int32)
        return Statistics(a, b, a, a, a, none, none, a)
    else:
        row = saved + row_ids * WIDE
        a = tl.load(row, mask=inside, other=1.0)
        b = tl.load(row + 1, mask=inside, other=0.0)
        c = tl.load(row + 2, mask=inside, other=0.0)
        d = tl.load(row + 3, mask=inside, other=0.0)
        e = tl.load(row + 4, mask=inside, other=0.0)
        low = tl.load(row + 5, mask=inside, other=0.0).to(tl.int32, bitcast=True)
        high = tl.load(row + 6, mask=inside, other=0.0).to(tl.int32, bitcast=True)
        f = tl.load(row + 7, mask=inside, other=0.0)
        return Statistics(a, b, c, d, e, low, high, f)


@triton.jit
def store_gradient(row_gradients, row_ids, gradient, by_parameter, inside, MAP: tl.constexpr):
    row = row_gradients + row_ids * GRADIENTS
    tl.store(row, gradient.gamma, mask=inside)
    tl.store(row + 2, by_parameter, mask=inside)
    if MAP.family != "pointwise":
        tl.store(row + 1, gradient.extra, mask=inside)


@triton.jit
def load_gradient(row_gradients, row_ids, inside, MAP: tl.constexpr):
    row = row_gradients + row_ids * GRADIENTS
    gamma = tl.load(row, mask=inside, other=0.0)
    extra = gamma
    if MAP.family != "pointwise":
        extra = tl.load(row + 1, mask=inside, other=0.0)
    return Gradient(gamma, extra)

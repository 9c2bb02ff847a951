"""Mappings in Triton whose rows need not sum to one: softpick, clipped softmax, sigmoid, relu.

| mapping         | a           | b                   | c     | d                     | low      |
| --------------- | ----------- | ------------------- | ----- | --------------------- | -------- |
| sigmoid         | bias        |                     |       |                       |          |
| relu            | 1 / n       |                     |       |                       |          |
| softpick        | max(0, max) | 1 / (sum abs + EPS) |       |                       | of max s |
| clipped-softmax | max s       | 1 / sum e^(s - a)   | gamma | d gamma / d parameter |          |
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.scores import tanh

EPS = tl.constexpr(1e-8)  # eps of softpick


@triton.jit
def softpick_size(s, shift):
    """e^(s - shift) - e^(-shift), by tanh to avoid cancellation; s = -inf gives 0."""
    near = tl.abs(s) < 1.0
    half = tanh(0.5 * tl.where(near, s, 0.0))
    least = tl.exp(-shift)
    size = tl.where(near, 2.0 * half / (1.0 - half) * least, tl.exp(s - shift) - least)
    return tl.where(s == float("-inf"), 0.0, size)


@triton.jit
def free_statistics(total, top, n, theta, MAP: tl.constexpr):
    """Return a, b, c and d of rows with n valid scores; `total` is their mass, of `survey`."""
    zero = n * 0.0
    n = tl.maximum(n, 1.0)
    if MAP.kind == "sigmoid":
        return tl.where(theta == float("inf"), -tl.log(n), theta), zero, zero, zero
    elif MAP.kind == "relu":
        return 1.0 / n, zero, zero, zero
    elif MAP.kind == "softpick":
        return tl.maximum(top, 0.0), 1.0 / (total + EPS), zero, zero
    else:
        by_length = theta > 0.0
        gamma = tl.where(by_length, -theta / n, theta)
        inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
        return top, inverse, gamma, tl.where(by_length, -1.0 / n, 1.0)


@triton.jit
def free_weights(s, a, b, c, MAP: tl.constexpr):
    """p of scores s [BM, BN]; NaN in `a` makes the row NaN."""
    if MAP.kind == "sigmoid":
        # an infinite score makes the row NaN, except -inf, which is masked
        return tl.where(s == float("-inf"), 0.0, tl.sigmoid(s + a) + (s - s))
    elif MAP.kind == "relu":
        p = tl.where(s > 0.0, s, 0.0) * a + (s - s)  # NaN stays
        return tl.where(s == float("-inf"), 0.0, p)
    elif MAP.kind == "softpick":
        size = softpick_size(s, a)
        return tl.where(size < 0.0, 0.0, size) * b
    else:
        share = tl.exp(s - a) * b
        # share + (1 - share) c, in one form for all keys of a row, so that equal scores stay equal
        p = tl.fma(share, 1.0 - c, c)
        return tl.where(p < 0.0, 0.0, p)


@triton.jit
def free_moments(s, p, a, b):
    """Weights w with gamma = sum w g for clipped softmax: its softmax where it is not clipped."""
    return tl.where(p > 0.0, tl.exp(s - a) * b, 0.0)


@triton.jit
def free_slopes(s, p, a, b, c, d, MAP: tl.constexpr):
    """Return u and v of `maps.slopes`; g is 0 where p is."""
    none = s * 0.0
    if MAP.kind == "sigmoid":
        u = p * tl.sigmoid(-s - a)
        return u, u
    elif MAP.kind == "relu":
        return tl.where(s > 0.0, a, 0.0), none
    elif MAP.kind == "softpick":
        u = tl.exp(s - a) * b
        return tl.where(s > 0.0, u, tl.where(s < 0.0, -u, 0.0)), none
    else:
        share = tl.exp(s - a) * b
        return share * (1.0 - c), tl.where(p > 0.0, (1.0 - share) * d, 0.0)


@triton.jit
def free_gradient(delta, second, ug, vg, stats, MAP: tl.constexpr):
    """Compute `maps.row_gradient`."""
    none = delta * 0.0
    if MAP.kind == "softpick":
        # the maximum cancels except for EPS
        return delta, delta * EPS * stats.b, none
    elif MAP.kind == "clipped-softmax":
        return ug / (1.0 - stats.c) if MAP.moments else second, none, vg
    else:
        return none, none, vg

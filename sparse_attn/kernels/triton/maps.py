"""The mappings in Triton: weights, slopes and row gradients.

The `Statistics` of a row are five numbers and two keys, `low` and `high`:

| family     | a     | b           | c    | d             | e                 |
| ---------- | ----- | ----------- | ---- | ------------- | ----------------- |
| pointwise  | size  | share       |      |               |                   |
| threshold  | max x | reach       | edge | share of high | d quantile / d r  |
| truncated  | max x | beta        | edge | log sum e^s   | entropy           |
| projection | max x | temperature | tau  | d b / d sum s | d b / d parameter |

The family free is in unnormalized.py. f is log2 of the sum that divides a threshold or truncated
row. x are the scores over `unit` (see scores.py). The reach is the distance in x from the maximum
to the quantile; rows of threshold and truncated mappings keep x >= edge. b, d and e of a truncated
row are adaptive-temperature's; its d and e belong to beta = 1. At temperature 0, d is the slack
within which the backward kernels treat a score as the maximum.

Every gradient has the form ds = slope (g - gamma) / temperature + kappa, with g the gradient to the
weight, less `pull` at the keys `low` and `high` of r-softmax's quantile (for t-softmax only at
`low`, the maximum).
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.pointwise import density, density_slopes
from sparse_attn.kernels.triton.projections import base_of, line_of, powers, projection_slopes
from sparse_attn.kernels.triton.unnormalized import (
    free_gradient,
    free_moments,
    free_slopes,
    free_weights,
)

LOG2E = tl.constexpr(1.4426950408889634)
TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal number
VAST = tl.constexpr(1099511627776.0)  # 2^40


@triton.jit
def nan_of(theta):
    """Return NaN for a NaN parameter, to make its rows NaN; else 0, also for infinity."""
    return tl.where(theta == theta, 0.0, float("nan"))


@triton.constexpr_function
def has_second(family, kind, grad, moments):
    """Whether a second output, with other weights, saves a pass over the row in backward."""
    needed = family in ("threshold", "projection") or kind == "clipped-softmax"
    return grad and needed and not moments


@triton.constexpr_function
def has_delta(family, kind):
    """Whether the gradient needs sum p g, computed as dL / d out times out."""
    return family != "projection" and (family != "free" or kind == "softpick")


@triton.jit
def reach_of(t):
    """Return t of a threshold row in x; VAST for tiny or infinite t, which makes scores equal."""
    return tl.where((t < TINY) | (t == float("inf")), VAST, t)


@triton.jit
def steepness(x, stats, unit, MAP: tl.constexpr):
    """Normalised e^(s - max s) of the kept scores; over t for a threshold row."""
    shifted = (x - stats.a[:, None]) * (unit * LOG2E)
    if MAP.kind == "adaptive-temperature":
        shifted *= stats.b[:, None]
    steep = tl.exp2(shifted - stats.f[:, None])
    return tl.where(x >= stats.c[:, None], steep, 0.0)


@triton.jit
def adapted(entropy):
    """Return beta of adaptive-temperature and its slope by the entropy."""
    h = entropy
    beta = (((-0.037 * h + 0.481) * h - 2.3) * h + 4.917) * h - 1.791
    slope = ((-0.148 * h + 1.443) * h - 4.6) * h + 4.917
    rises = (h > 0.5) & (beta > 1.0)
    return tl.where(rises, beta, 1.0), tl.where(rises, slope, 0.0)


@triton.jit
def entropy_gradient(x, stats, unit):
    """-q (log q + entropy) with q = softmax(s), the slope of its entropy by each score."""
    log_q = (x - stats.a[:, None]) * unit - stats.d[:, None]
    slope = -tl.exp2(log_q * LOG2E) * (log_q + stats.e[:, None])
    return tl.where(x == float("-inf"), 0.0, slope)


@triton.jit
def weights(x, stats, theta, unit, MAP: tl.constexpr):
    """Compute p for x [BM, BN]; x = -inf gives exactly 0."""
    a, b, c = stats.a[:, None], stats.b[:, None], stats.c[:, None]
    if MAP.family == "pointwise":
        return density(x, a, b, theta, unit, MAP)
    elif MAP.family == "threshold":
        return tl.maximum((x - a) + b, 0.0) * steepness(x, stats, unit, MAP)
    elif MAP.family == "truncated":
        return steepness(x, stats, unit, MAP)
    elif MAP.family == "free":
        return free_weights(x * unit, a, b, c, MAP)
    else:
        line = line_of(stats.a, stats.b, stats.c, stats.d, theta, unit, MAP)
        p, _ = powers(base_of(x, line, theta, MAP), theta, MAP)
        return p


@triton.jit
def both_weights(x, solved, theta, unit, MAP: tl.constexpr):
    """Compute the weights of both outputs, [BM, BN], in [0, 1] for a threshold row."""
    stats = solved.stats
    if MAP.family == "threshold":
        steep = steepness(x, stats, unit, MAP)
        over = tl.maximum((x - stats.a[:, None]) + stats.b[:, None], 0.0)
        return over * (1.0 / stats.b)[:, None] * steep, steep
    elif MAP.family == "projection":
        line = line_of(stats.a, stats.b, stats.c, stats.d, theta, unit, MAP)
        return powers(base_of(x, line, theta, MAP), theta, MAP)
    elif MAP.kind == "clipped-softmax":
        p = weights(x, stats, theta, unit, MAP)
        return p, free_moments(x * unit, p, stats.a[:, None], stats.b[:, None])
    else:
        p = weights(x, stats, theta, unit, MAP)
        return p, p


@triton.jit
def slopes(x, p, stats, theta, unit, MAP: tl.constexpr):
    """Compute u and v: ds = u (g - gamma) ..., d parameter = sum v (g - gamma) ..."""
    a, b, c = stats.a[:, None], stats.b[:, None], stats.c[:, None]
    if MAP.family == "pointwise":
        _, u, v = density_slopes(x, a, b, theta, unit, MAP)
        return u, v
    elif MAP.family == "threshold":
        v = steepness(x, stats, unit, MAP) * (1.0 / unit)
        return p + v, v
    elif MAP.kind == "adaptive-temperature":
        return p * b, tl.where(p > 0.0, p * (x - a) * unit, 0.0)
    elif MAP.family == "truncated":
        return p, p * 0.0
    elif MAP.family == "free":
        return free_slopes(x * unit, p, a, b, c, stats.d[:, None], MAP)
    else:
        line = line_of(stats.a, stats.b, stats.c, stats.d, theta, unit, MAP)
        return projection_slopes(x, p, line, stats.b, theta, MAP)


@triton.jit
def row_gradient(delta, second, sums, stats, unit, MAP: tl.constexpr):
    """Compute gamma, pull or kappa, and the gradient to the parameter.

    delta = sum p g, `second` the same for the second output, sums = sum u g, u, v g and v.
    """
    none = stats.a * 0.0
    ug, u, vg, v = sums
    if MAP.family == "pointwise":
        return delta, none, vg - delta * v
    elif MAP.family == "threshold":
        if MAP.moments:
            delta = ug
            pull = vg - delta * v
        else:
            pull = second / tl.where(stats.b == 0.0, 1.0, stats.b * unit)
        return delta, pull, -pull * stats.e if MAP.kind == "r-softmax" else pull
    elif MAP.kind == "adaptive-temperature":
        _, slope = adapted(stats.e)
        # from the moments, because out in half precision is too coarse for a product with v
        delta = tl.where(stats.b > 0.0, ug / tl.where(stats.b > 0.0, stats.b, 1.0), 0.0)
        return delta, slope * (vg - delta * v), none
    elif MAP.family == "truncated":
        return delta, none, none
    elif MAP.family == "free":
        return free_gradient(delta, second, ug, vg, stats, MAP)
    elif not MAP.moments:
        return second, none, none
    else:
        gamma = tl.where(u > 0.0, ug / tl.where(u > 0.0, u, 1.0), 0.0)
        if MAP.kind == "entmax":
            return gamma, none, vg - gamma * v
        warm = stats.b > 0.0
        by_temperature = tl.where(warm, -(vg - gamma * v) / tl.where(warm, stats.b, 1.0), 0.0)
        return gamma, by_temperature * stats.d, by_temperature * stats.e

"""The mappings in Triton: weights, slopes and row gradients.

A row is described by its `Statistics`, five numbers and two keys, `low` and `high`:

| family     | a         | b           | c          | d              | e                  |
| ---------- | --------- | ----------- | ---------- | -------------- | ------------------ |
| pointwise  | max log g | 1 / sum     |            |                |                    |
| threshold  | max s     | t           | 1 / sum    | share of high  | d quantile / d r   |
| truncated  | max s     | t           | 1 / sum    |                |                    |
| projection | max s     | temperature | tau        | d b / d sum s  | d b / d parameter  |

and for family free in unnormalized.py. If b = 0 in a threshold or projection row, only the maxima
keep weight, gradients are 0, and d is the slack within which the backward kernels treat a score as
the maximum. A truncated row keeps the scores not further than t from the maximum.

Every gradient has the form ds = slope (g - gamma) / temperature + kappa, where g is the gradient
to the weight, less `pull` at the keys `low` and `high` that own the quantile of r-softmax (`low`
alone, the maximum of t-softmax).
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.unnormalized import (
    free_gradient,
    free_slopes,
    free_weights,
    softpick_size,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)  # finite log 0: rows of zeros become uniform
TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal number
FAR_OUT = tl.constexpr(1e9)  # beyond it z^2 + eps = z^2; z^2 overflows at 1.8e19
E_MIN = tl.constexpr(1e-7)  # below this alpha - 1, entmax equals softmax in float32


@triton.jit
def nan_of(theta):
    """NaN for a NaN parameter, which makes its rows NaN; else 0, also for infinity."""
    return tl.where(theta == theta, 0.0, float("nan"))


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def log_square(s):
    return 2.0 * tl.log(tl.maximum(tl.abs(s), 1.0))


@triton.jit
def log_g(s, theta, MAP: tl.constexpr):
    """log g of a pointwise mapping; s finite."""
    if MAP.kind == "sigsoftmax":
        f = s + log_sigmoid(s + theta)
    elif MAP.kind == "taylor-softmax":
        far = tl.abs(s) > FAR_OUT
        near = tl.where(far, 0.0, s)
        f = tl.where(
            far, log_square(s) - 0.6931471805599453, tl.log(1.0 + near + 0.5 * near * near)
        )
    elif MAP.kind == "spherical-softmax":
        far = tl.abs(s) > FAR_OUT
        near = tl.where(far, 1.0, s * s + theta)
        f = tl.where(far, log_square(s), tl.where(near > 0.0, tl.log(near), LOWEST))
    elif MAP.kind == "softmax-abs":
        f = tl.abs(s)
    elif MAP.kind == "normalized-relu":
        f = tl.where(s < TINY, LOWEST, tl.log(tl.maximum(s, TINY)))
    elif MAP.kind == "normalized-sigmoid":
        f = log_sigmoid(s)
    else:
        f = s
    return f + (s - s) + nan_of(theta)  # NaN and inf must make the row NaN


@triton.jit
def log_g_slopes(s, theta, MAP: tl.constexpr):
    """d log g / ds and d log g / d parameter."""
    by_theta = s * 0.0
    if MAP.kind == "sigsoftmax":
        by_theta = tl.sigmoid(-s - theta)
        by_s = 1.0 + by_theta
    elif MAP.kind == "taylor-softmax":
        by_s = (1.0 + s) / (1.0 + s + 0.5 * s * s)
    elif MAP.kind == "spherical-softmax":
        square = s * s + theta
        by_theta = tl.where(square > 0.0, 1.0 / square, 0.0)
        by_s = 2.0 * s * by_theta
    elif MAP.kind == "softmax-abs":
        by_s = tl.where(s > 0.0, 1.0, tl.where(s < 0.0, -1.0, 0.0))
    elif MAP.kind == "normalized-relu":
        by_s = tl.where(s < TINY, 0.0, 1.0 / tl.maximum(s, TINY))
    elif MAP.kind == "normalized-sigmoid":
        by_s = tl.sigmoid(-s)
    else:
        by_s = by_theta + 1.0
    return by_s, by_theta


@triton.jit
def size_of(s, top, MAP: tl.constexpr):
    """e^(s - top), for softpick its signed size."""
    if MAP.kind == "softpick":
        return softpick_size(s, top)
    else:
        return tl.exp(s - top)


@triton.jit
def within(y, t, slack, columns, low, MAP: tl.constexpr):
    """Weights relu(1 + y/t) of t- and r-softmax before e^y, and where they are not 0; y <= 0.

    Recomputed scores may differ in the last bits: the key that owns the quantile is excluded by
    index, and at t = 0 scores within `slack` of the maximum count as maxima.
    """
    inside = y > -t
    if MAP.kind == "r-softmax":
        inside = inside & ((columns[None, :] != low) | (t == 0.0))
    top = (y >= -slack).to(tl.float32)
    weight = tl.where(t == 0.0, top, tl.where(inside, 1.0 + y / tl.where(t == 0.0, 1.0, t), 0.0))
    return weight, inside


@triton.jit
def scaled(s, top, temperature, slack):
    """y = (s - max s) / temperature; temperature 0 keeps the maxima, as in `within`."""
    shifted = s - top
    cold = (temperature == 0.0) & (shifted >= -slack)
    return tl.where(cold | (shifted == 0.0), 0.0, shifted / temperature)


@triton.jit
def temperature_of(total, n, theta, MAP: tl.constexpr):
    """The temperature of sparsemax(s / temperature), and its slopes by sum s and the parameter."""
    by_total = total * 0.0
    by_theta = total * 0.0
    temperature = total * 0.0 + 1.0
    if MAP.kind == "sparsegen":
        temperature = temperature - theta
        by_theta = by_theta - 1.0
    elif MAP.kind == "sparsecone" or MAP.kind == "sparsehourglass":
        size = n * theta
        if MAP.kind == "sparsecone":
            part = tl.maximum(total, -size)
            sign = tl.where(total > -size, 1.0, 0.0)
        else:
            part = tl.abs(total)
            sign = tl.where(total > 0.0, 1.0, tl.where(total < 0.0, -1.0, 0.0))
        temperature = (part + size) / (1.0 + size)
        by_total = sign / (1.0 + size)
        by_theta = n * (1.0 - part) / ((1.0 + size) * (1.0 + size))
        if MAP.kind == "sparsecone":
            by_theta = tl.where(total > -size, by_theta, 0.0)
        # 1 / temperature overflows below
        temperature = tl.where(temperature < TINY, 0.0, temperature)
    return temperature, by_total, by_theta


@triton.jit
def exponent(theta, MAP: tl.constexpr):
    """alpha - 1 of entmax, 1 of the sparsemax family."""
    e = theta * 0.0 + 1.0
    if MAP.kind == "entmax":
        e = tl.maximum(theta - 1.0, E_MIN)
    elif MAP.kind == "entmax-1.5":
        e = theta * 0.0 + 0.5
    return e


@triton.jit
def powers(y, tau, e, MAP: tl.constexpr):
    """p = (1 + e (y - tau))_+^(1/e) and its slope u = p^(1-e); y = -inf gives 0 and 0."""
    base = 1.0 + e * (y - tau)
    base = tl.where(base < 0.0, 0.0, base)  # tl.maximum would drop a NaN
    if MAP.kind == "entmax-1.5":
        return base * base, base
    elif MAP.kind == "entmax":
        v = base - 1.0
        # log1p(e x) / e without cancellation for small e
        ratio = tl.where(v == 0.0, 1.0, tl.log(tl.maximum(base, TINY)) / v)
        log_p = (y - tau) * ratio
        outside = base == 0.0
        u = tl.where(outside, 0.0, tl.exp((1.0 - e) * log_p))
        return tl.where(outside, 0.0, tl.exp(log_p)), u
    else:
        return base, tl.where(base > 0.0, 1.0, 0.0)


@triton.jit
def newton_step(total, slope, e, MAP: tl.constexpr):
    """The step of tau for (sum p)^e = 1, given sum p and sum u of a row."""
    if MAP.kind == "entmax-1.5":
        root = tl.sqrt(total)
        return 2.0 * (root - 1.0) * root / slope
    elif MAP.kind == "entmax":
        log_total = tl.log(total)
        x = e * log_total
        grown = tl.exp(x)
        # expm1(x) without cancellation
        growth = tl.where(tl.abs(x) < 1e-4, x, (grown - 1.0) * x / tl.log(grown))
        return growth / e * tl.exp((1.0 - e) * log_total) / slope
    else:
        return (total - 1.0) / slope


@triton.jit
def weights(s, stats, columns, theta, MAP: tl.constexpr):
    """The mapping's p for scores s [BM, BN]; s = -inf gives exactly 0."""
    a, b, c, slack = stats.a[:, None], stats.b[:, None], stats.c[:, None], stats.d[:, None]
    if MAP.family == "pointwise":
        f = log_g(tl.where(s == float("-inf"), 0.0, s), theta, MAP)
        p = tl.exp(f - a) * b
    elif MAP.family == "threshold":
        y = s - a
        weight, _ = within(y, b, slack, columns, stats.low[:, None], MAP)
        p = weight * tl.where(b == 0.0, 1.0, tl.exp(y)) * c
    elif MAP.family == "truncated":
        y = s - a
        p = tl.where(y < -b, 0.0, tl.exp(y)) * c
    elif MAP.family == "free":
        p = free_weights(s, a, b, c, MAP)
    else:
        y = scaled(s, a, b, slack)
        p, _ = powers(y, c, exponent(theta, MAP), MAP)
    return tl.where(s == float("-inf"), 0.0, p)


@triton.jit
def slopes(s, p, stats, columns, theta, MAP: tl.constexpr):
    """u and v of each entry: ds = u (g - gamma) ..., d parameter = sum v (g - gamma) ..."""
    a, b, c, slack = stats.a[:, None], stats.b[:, None], stats.c[:, None], stats.d[:, None]
    outside = s == float("-inf")
    if MAP.family == "pointwise":
        by_s, by_theta = log_g_slopes(tl.where(outside, 0.0, s), theta, MAP)
        u = p * by_s
        v = p * by_theta
    elif MAP.family == "threshold":
        y = s - a
        _, inside = within(y, b, slack, columns, stats.low[:, None], MAP)
        steep = inside & (b > 0.0) & (b < float("inf"))
        v = tl.where(steep, tl.exp(y) * c / tl.where(b == 0.0, 1.0, b), 0.0)
        u = p + v
    elif MAP.family == "truncated":
        u = p
        v = p * 0.0
    elif MAP.family == "free":
        u, v = free_slopes(s, p, a, b, c, slack, MAP)
    else:
        e = exponent(theta, MAP)
        y = scaled(s, a, b, slack)
        _, u = powers(y, c, e, MAP)
        if MAP.kind == "entmax":
            log_p = tl.where(p > 0.0, tl.log(tl.where(p > 0.0, p, 1.0)), 0.0)
            x = e * log_p
            far = tl.where(tl.abs(x) < 1e-2, 1.0, x)
            near = -0.5 + x * (1.0 / 6 - x * (1.0 / 24 - x * (1.0 / 120 - x / 720.0)))
            ratio = tl.where(tl.abs(x) < 1e-2, near, (1.0 - tl.exp(-far) - far) / (far * far))
            v = p * log_p * log_p * ratio
        else:
            v = u * tl.where(u > 0.0, y, 0.0)
        u = tl.where(b > 0.0, u, 0.0)  # temperature 0: a constant
    return tl.where(outside, 0.0, u), tl.where(outside, 0.0, v)


@triton.jit
def row_gradient(ug, u, vg, v, delta, stats, MAP: tl.constexpr):
    """gamma, pull or kappa, and the gradient to the parameter, from the sums over a row.

    `ug` is sum u g, and so on; delta = sum p g.
    """
    if MAP.family == "pointwise":
        return delta, delta * 0.0, vg - delta * v
    elif MAP.family == "threshold":
        pull = vg - delta * v
        if MAP.kind == "r-softmax":
            return delta, pull, -pull * stats.e
        return delta, pull, pull
    elif MAP.family == "truncated":
        return delta, delta * 0.0, delta * 0.0
    elif MAP.family == "free":
        return free_gradient(ug, vg, delta, stats, MAP)
    else:
        gamma = tl.where(u > 0.0, ug / tl.where(u > 0.0, u, 1.0), 0.0)
        if MAP.kind == "entmax":
            return gamma, gamma * 0.0, vg - gamma * v
        warm = stats.b > 0.0
        by_temperature = tl.where(warm, -(vg - gamma * v) / tl.where(warm, stats.b, 1.0), 0.0)
        return gamma, by_temperature * stats.d, by_temperature * stats.e

"""The mappings' lines in the Triton kernels: weights, slopes and row gradients.

A row is described by its statistics `stats = (a, b, c, d, e)` and two key indices `low, high`:

| family     | a         | b           | c          | d              | e                  |
| ---------- | --------- | ----------- | ---------- | -------------- | ------------------ |
| pointwise  | max log g | 1 / sum     |            |                |                    |
| threshold  | max s     | t           | 1 / sum    | share of high  | d quantile / d r   |
| projection | max s     | temperature | tau        | d b / d sum s  | d b / d parameter  |

Every gradient has the form ds = slope (g - gamma) / temperature + kappa, where g is the gradient to
the weight, and -pull at the two keys `low` and `high` that own the quantile of r-softmax (`low` alone
the maximum of t-softmax).
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)  # log 0 as a number: a row of zeros comes out uniform
TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal number
E_MIN = tl.constexpr(1e-7)  # entmax with alpha - 1 below this is softmax to the last digit


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def tanh(x):
    """By the series where 2 sigmoid(2x) - 1 would cancel."""
    square = x * x
    near = x * (1.0 - square * (1.0 / 3 - square * (2.0 / 15 - square * (17.0 / 315))))
    return tl.where(tl.abs(x) < 0.1, near, 2.0 * tl.sigmoid(2.0 * x) - 1.0)


@triton.jit
def log_g(s, theta, KIND: tl.constexpr):
    """log g of a pointwise mapping; s finite."""
    if KIND == "sigsoftmax":
        f = s + log_sigmoid(s + theta)
    elif KIND == "taylor-softmax":
        f = tl.log(1.0 + s + 0.5 * s * s)
    elif KIND == "spherical-softmax":
        square = s * s + theta
        f = tl.where(square > 0.0, tl.log(square), LOWEST)
    elif KIND == "softmax-abs":
        f = tl.abs(s)
    elif KIND == "normalized-relu":
        f = tl.where(s < TINY, LOWEST, tl.log(tl.maximum(s, TINY)))
    elif KIND == "normalized-sigmoid":
        f = log_sigmoid(s)
    else:
        f = s
    return f + (s - s)  # NaN and inf must spoil the row


@triton.jit
def log_g_slopes(s, theta, KIND: tl.constexpr):
    """d log g / ds and d log g / d parameter."""
    by_theta = s * 0.0
    if KIND == "sigsoftmax":
        by_theta = tl.sigmoid(-s - theta)
        by_s = 1.0 + by_theta
    elif KIND == "taylor-softmax":
        by_s = (1.0 + s) / (1.0 + s + 0.5 * s * s)
    elif KIND == "spherical-softmax":
        square = s * s + theta
        by_theta = tl.where(square > 0.0, 1.0 / square, 0.0)
        by_s = 2.0 * s * by_theta
    elif KIND == "softmax-abs":
        by_s = tl.where(s > 0.0, 1.0, tl.where(s < 0.0, -1.0, 0.0))
    elif KIND == "normalized-relu":
        by_s = tl.where(s < TINY, 0.0, 1.0 / tl.maximum(s, TINY))
    elif KIND == "normalized-sigmoid":
        by_s = tl.sigmoid(-s)
    else:
        by_s = by_theta + 1.0
    return by_s, by_theta


@triton.jit
def within(y, t, columns, low, KIND: tl.constexpr):
    """Weights relu(1 + y/t) of t- and r-softmax before e^y, and where they are not 0; y <= 0.

    The key that owns the quantile is outside by its index: scores computed again in another kernel
    need not match to the last bit.
    """
    inside = y > -t
    if KIND == "r-softmax":
        inside = inside & ((columns[None, :] != low) | (t == 0.0))
    top = (y == 0.0).to(tl.float32)
    weight = tl.where(t == 0.0, top, tl.where(inside, 1.0 + y / tl.where(t == 0.0, 1.0, t), 0.0))
    return weight, inside


@triton.jit
def scaled(s, top, temperature):
    """y = (s - max s) / temperature; temperature 0 leaves the maxima."""
    shifted = s - top
    return tl.where(shifted == 0.0, 0.0, shifted / temperature)


@triton.jit
def temperature_of(total, n, theta, KIND: tl.constexpr):
    """The temperature of sparsemax(s / temperature), and its slopes by sum s and the parameter."""
    by_total = total * 0.0
    by_theta = total * 0.0
    temperature = total * 0.0 + 1.0
    if KIND == "sparsegen":
        temperature = temperature - theta
        by_theta = by_theta - 1.0
    elif KIND == "sparsecone" or KIND == "sparsehourglass":
        size = n * theta
        if KIND == "sparsecone":
            part = tl.maximum(total, -size)
            sign = tl.where(total > -size, 1.0, 0.0)
        else:
            part = tl.abs(total)
            sign = tl.where(total > 0.0, 1.0, tl.where(total < 0.0, -1.0, 0.0))
        temperature = (part + size) / (1.0 + size)
        by_total = sign / (1.0 + size)
        by_theta = n * (1.0 - part) / ((1.0 + size) * (1.0 + size))
        if KIND == "sparsecone":
            by_theta = tl.where(total > -size, by_theta, 0.0)
    return temperature, by_total, by_theta


@triton.jit
def exponent(theta, KIND: tl.constexpr):
    """alpha - 1 of entmax, 1 of the sparsemax family."""
    e = theta * 0.0 + 1.0
    if KIND == "entmax":
        e = tl.maximum(theta - 1.0, E_MIN)
    elif KIND == "entmax-1.5":
        e = theta * 0.0 + 0.5
    return e


@triton.jit
def powers(y, tau, e, KIND: tl.constexpr):
    """p = (1 + e (y - tau))_+^(1/e) and its slope u = p^(1-e); y = -inf gives 0 and 0."""
    base = 1.0 + e * (y - tau)
    base = tl.where(base < 0.0, 0.0, base)  # maximum would lose a NaN
    if KIND == "entmax-1.5":
        return base * base, base
    elif KIND == "entmax":
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
def newton_step(total, slope, e, KIND: tl.constexpr):
    """The step of tau for (sum p)^e = 1, given sum p and sum u of a row."""
    if KIND == "entmax-1.5":
        root = tl.sqrt(total)
        return 2.0 * (root - 1.0) * root / slope
    elif KIND == "entmax":
        log_total = tl.log(total)
        x = e * log_total
        growth = tl.where(tl.abs(x) < 1e-3, x * (1.0 + 0.5 * x), tl.exp(x) - 1.0)
        return growth / e * tl.exp((1.0 - e) * log_total) / slope
    else:
        return (total - 1.0) / slope


@triton.jit
def weights(s, stats, low, columns, theta, FAMILY: tl.constexpr, KIND: tl.constexpr):
    """The mapping's p for scores s [BM, BN]; s = -inf gives exactly 0."""
    a, b, c, _, _ = stats
    if FAMILY == "pointwise":
        f = log_g(tl.where(s == float("-inf"), 0.0, s), theta, KIND)
        p = tl.exp(f - a[:, None]) * b[:, None]
    elif FAMILY == "threshold":
        y = s - a[:, None]
        weight, _ = within(y, b[:, None], columns, low[:, None], KIND)
        p = weight * tl.exp(y) * c[:, None]
    else:
        y = scaled(s, a[:, None], b[:, None])
        p, _ = powers(y, c[:, None], exponent(theta, KIND), KIND)
    return tl.where(s == float("-inf"), 0.0, p)


@triton.jit
def slopes(s, p, stats, low, columns, theta, FAMILY: tl.constexpr, KIND: tl.constexpr):
    """u and v of each entry: ds = u (g - gamma) ..., d parameter = sum v (g - gamma) ..."""
    a, b, c, _, _ = stats
    outside = s == float("-inf")
    if FAMILY == "pointwise":
        by_s, by_theta = log_g_slopes(tl.where(outside, 0.0, s), theta, KIND)
        u = p * by_s
        v = p * by_theta
    elif FAMILY == "threshold":
        y = s - a[:, None]
        t = b[:, None]
        _, inside = within(y, t, columns, low[:, None], KIND)
        steep = inside & (t > 0.0) & (t < float("inf"))
        u = p + tl.where(steep, tl.exp(y) * c[:, None] / tl.where(t == 0.0, 1.0, t), 0.0)
        v = u
    else:
        e = exponent(theta, KIND)
        y = scaled(s, a[:, None], b[:, None])
        _, u = powers(y, c[:, None], e, KIND)
        if KIND == "entmax":
            log_p = tl.where(p > 0.0, tl.log(tl.where(p > 0.0, p, 1.0)), 0.0)
            x = e * log_p
            far = tl.where(tl.abs(x) < 1e-2, 1.0, x)
            near = -0.5 + x * (1.0 / 6 - x * (1.0 / 24 - x * (1.0 / 120 - x / 720.0)))
            ratio = tl.where(tl.abs(x) < 1e-2, near, (1.0 - tl.exp(-far) - far) / (far * far))
            v = p * log_p * log_p * ratio
        else:
            v = u * tl.where(u > 0.0, y, 0.0)
        u = tl.where(b[:, None] > 0.0, u, 0.0)  # temperature 0: a constant
    return tl.where(outside, 0.0, u), tl.where(outside, 0.0, v)


@triton.jit
def row_gradient(ug, u, vg, v, delta, stats, FAMILY: tl.constexpr, KIND: tl.constexpr):
    """gamma, kappa, pull and the gradient to the parameter, from the sums over a row.

    `ug` is sum u g, and so on; delta = sum p g.
    """
    _, temperature, _, by_total, by_theta = stats
    zero = delta * 0.0
    if FAMILY == "pointwise":
        return delta, zero, zero, vg - delta * v
    elif FAMILY == "threshold":
        pull = ug - delta * u
        if KIND == "r-softmax":
            return delta, zero, pull, -pull * by_theta
        return delta, zero, pull, pull
    else:
        gamma = tl.where(u > 0.0, ug / tl.where(u > 0.0, u, 1.0), 0.0)
        if KIND == "entmax":
            return gamma, zero, zero, vg - gamma * v
        by_temperature = tl.where(
            temperature > 0.0,
            -(vg - gamma * v) / tl.where(temperature > 0.0, temperature, 1.0),
            0.0,
        )
        return gamma, by_temperature * by_total, zero, by_temperature * by_theta

"""Projections in Triton: p_i = (1 + e (y_i - tau))_+^(1/e), y = (s - max s) / temperature.

e = alpha - 1 for entmax, 1 for sparsemax and its relatives.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.names import Line

TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal number
COLD = tl.constexpr(1e30)  # distance of other scores below the maximum at temperature 0
LEAST = tl.constexpr(-0.99999994)  # the next number after -1
E_MIN = tl.constexpr(1e-7)  # below this alpha - 1, entmax equals softmax in float32


@triton.jit
def exponent(theta, MAP: tl.constexpr):
    """e: alpha - 1 of entmax, 1 of the sparsemax family."""
    e = theta * 0.0 + 1.0
    if MAP.kind == "entmax":
        e = tl.maximum(theta - 1.0, E_MIN)
    elif MAP.kind == "entmax-1.5":
        e = theta * 0.0 + 0.5
    return e


@triton.jit
def temperature_of(total, n, theta, MAP: tl.constexpr):
    """Temperature of sparsemax(s / temperature), and its slopes by sum s and the parameter."""
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


@triton.constexpr_function
def varies(kind):
    """Whether the temperature differs between rows."""
    return kind in ("sparsecone", "sparsehourglass")


@triton.jit
def line_of(top, temperature, tau, slack, theta, unit, MAP: tl.constexpr):
    """Return y as a line in x, of rows [BM]."""
    factor = warmth(temperature, theta, MAP) * (exponent(theta, MAP) * unit)
    chill = slack
    if varies(MAP.kind):
        factor = factor[:, None]
        slack = tl.where(temperature == 0.0, slack, 0.0)[:, None]
        chill = tl.where(temperature == 0.0, -COLD, 0.0)[:, None]
    return Line(top[:, None], factor, tau[:, None], slack, chill)


@triton.jit
def warmth(temperature, theta, MAP: tl.constexpr):
    """1 / temperature of each row or of all rows."""
    if varies(MAP.kind):
        return 1.0 / tl.where(temperature == 0.0, 1.0, temperature)
    elif MAP.kind == "sparsegen":
        return 1.0 / (1.0 - theta)
    else:
        return 1.0


@triton.jit
def base_of(x, line, theta, MAP: tl.constexpr):
    """(1 + e (y - tau))_+, for entmax e (y - tau); -inf gives no weight.

    y is exactly 0 at the maximum, because the maximum is subtracted first.
    """
    e = exponent(theta, MAP)
    shifted = x - line.top
    if varies(
        MAP.kind
    ):  # at temperature 0, scores within the slack count as the maximum, and no others
        shifted = tl.where(shifted >= -line.slack, 0.0, shifted + line.chill)
    if MAP.kind == "entmax":
        return shifted * line.factor - e * line.tau
    else:
        if varies(MAP.kind) or MAP.kind == "sparsegen":
            base = 1.0 + (shifted * line.factor - line.tau)  # so that a zero is as exact as the 1
        else:
            base = shifted * line.factor + (1.0 - e * line.tau)
        return tl.maximum(base, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def powers(base, theta, MAP: tl.constexpr):
    """Return p and its slope u = p^(1-e) from `base_of`; x = -inf gives 0 and 0."""
    if MAP.kind == "entmax-1.5":
        return base * base, base
    elif MAP.kind == "entmax":
        e = exponent(theta, MAP)
        v = tl.maximum(base, LEAST, propagate_nan=tl.PropagateNan.ALL)
        # log1p(v) / e without cancellation for small e: divide by the rounded v that was added to 1
        added = (1.0 + v) - 1.0
        log_p = v / e * tl.where(added == 0.0, 1.0, tl.log(1.0 + v) / added)
        outside = base <= -1.0
        u = tl.where(outside, 0.0, tl.exp((1.0 - e) * log_p))
        return tl.where(outside, 0.0, tl.exp(log_p)), u
    else:
        return base, tl.where(base > 0.0, 1.0, 0.0)


@triton.jit
def newton_step(total, slope, theta, MAP: tl.constexpr):
    """Compute the step of tau for (sum p)^e = 1, from sum p and sum u of a row."""
    if MAP.kind == "entmax-1.5":
        root = tl.sqrt(total)
        move = 2.0 * (root - 1.0) * root / slope
    elif MAP.kind == "entmax":
        e = exponent(theta, MAP)
        log_total = tl.log(total)
        x = e * log_total
        grown = tl.exp(x)
        # expm1(x) without cancellation
        growth = tl.where(tl.abs(x) < 1e-4, x, (grown - 1.0) * x / tl.log(grown))
        move = growth / e * tl.exp((1.0 - e) * log_total) / slope
    else:
        move = (total - 1.0) / slope
    return tl.where(slope > 0.0, move, 0.0)


@triton.jit
def projection_slopes(x, p, line, temperature, theta, MAP: tl.constexpr):
    """Return u and v of p: ds = u (g - gamma) / temperature, d parameter = sum v (g - gamma)."""
    base = base_of(x, line, theta, MAP)
    _, u = powers(base, theta, MAP)
    if MAP.kind == "entmax":
        e = exponent(theta, MAP)
        log_p = tl.where(p > 0.0, tl.log(tl.where(p > 0.0, p, 1.0)), 0.0)
        z = e * log_p
        far = tl.where(tl.abs(z) < 1e-2, 1.0, z)
        near = -0.5 + z * (1.0 / 6 - z * (1.0 / 24 - z * (1.0 / 120 - z / 720.0)))
        ratio = tl.where(tl.abs(z) < 1e-2, near, (1.0 - tl.exp(-far) - far) / (far * far))
        v = p * log_p * log_p * ratio
    else:
        v = u * tl.where(u > 0.0, (x - line.top) * line.factor, 0.0)
    if varies(MAP.kind):
        u = tl.where(temperature[:, None] > 0.0, u, 0.0)  # p is constant at temperature 0
    return u, v

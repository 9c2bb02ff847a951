"""Pointwise mappings in Triton: p_i = g(s_i) / sum_j g(s_j), without a logarithm.

Against overflow, g is divided by a power of a row's largest `size`, with an online sum: g = 2^size
h with h in [1/2, 1] by 2^size, a polynomial in s by the largest |s| to its degree.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(1e-18)  # rows whose g are all below its square become uniform


@triton.constexpr_function
def is_power(kind):
    """Whether g is divided by a power of the largest score."""
    return kind in ("taylor-softmax", "spherical-softmax", "normalized-relu")


@triton.jit
def least_size(theta, MAP: tl.constexpr):
    """The size of a row before its first score."""
    if MAP.kind == "taylor-softmax":
        return theta * 0.0 + 1.0
    elif MAP.kind == "spherical-softmax":
        return tl.maximum(tl.sqrt(theta), LEAST)
    elif MAP.kind == "normalized-relu":
        return theta * 0.0 + LEAST
    else:
        return theta * 0.0 - float("inf")


@triton.jit
def size_of(x, theta, unit, MAP: tl.constexpr):
    """log(g / h) / unit, or the base of the power; the least size for x = -inf."""
    if MAP.kind == "softmax":
        return x
    elif MAP.kind == "sigsoftmax":
        return x + tl.minimum(x + theta / unit, 0.0)
    elif MAP.kind == "softmax-abs":
        return tl.where(x == float("-inf"), x, tl.abs(x))
    elif MAP.kind == "normalized-sigmoid":
        return tl.minimum(x, 0.0)
    elif MAP.kind == "normalized-relu":
        return x * unit
    else:
        return tl.where(x == float("-inf"), 0.0, tl.abs(x * unit))


@triton.constexpr_function
def all_of(kind):
    """The share 1 in the form that `density` takes."""
    return 1.0 if is_power(kind) else 0.0


@triton.jit
def share_of(total, MAP: tl.constexpr):
    """The share 1 / total, or 1 without valid scores."""
    some = tl.where(total == 0.0, 1.0, total)
    return 1.0 / some if is_power(MAP.kind) else -tl.log2(some)


@triton.jit
def shrink_of(old, new, unit, MAP: tl.constexpr):
    """Factor that rescales sums from the old size to the new one."""
    if is_power(MAP.kind):
        part = tl.where(old == new, 1.0, old / new)  # because a division may be inexact
        return part if MAP.kind == "normalized-relu" else part * part
    else:
        return tl.exp2((old - new) * (unit * LOG2E))


@triton.jit
def inverse_of(size):
    """1 / size, or 0 in a row that becomes uniform; NaN times either stays NaN."""
    return tl.where(size <= LEAST, 0.0, 1.0 / size)


@triton.jit
def density(x, size, share, theta, unit, MAP: tl.constexpr):
    """g over its power of `size`, times a share (its log2 for 2^size); 0 for x = -inf.

    The size is subtracted first, so that the largest g is exact.
    """
    if MAP.kind == "taylor-softmax":
        small = 1.0 / size
        u = x * (unit * small) + small
        g = 0.5 * (u * u + small * small)
    elif MAP.kind == "spherical-softmax":
        small = inverse_of(size)
        u = x * (unit * small)
        g = u * u + tl.where(size <= LEAST, 1.0, theta * small * small)
    elif MAP.kind == "normalized-relu":
        u = x * (unit * inverse_of(size))
        least = tl.where(size <= LEAST, 1.0, 0.0)
        g = tl.maximum(u, least, propagate_nan=tl.PropagateNan.ALL)
    else:
        g = tl.exp2((size_of(x, theta, unit, MAP) - size) * (unit * LOG2E) + share)
        if MAP.kind == "sigsoftmax" or MAP.kind == "normalized-sigmoid":
            g *= rising(x, theta, unit, MAP)
        return g
    return tl.where(x == float("-inf"), 0.0, g * share)


@triton.jit
def falling(x, theta, unit, MAP: tl.constexpr):
    """Return e^-|z| and z, for the z whose sigmoid is in g."""
    z = x * (unit * LOG2E)
    if MAP.kind == "sigsoftmax":
        z += theta * LOG2E
    return tl.exp2(-tl.abs(z)), z


@triton.jit
def rising(x, theta, unit, MAP: tl.constexpr):
    """sigma(|z|) = 1 / (1 + e^-|z|)."""
    small, _ = falling(x, theta, unit, MAP)
    root = tl.rsqrt(1.0 + small)  # of a number in [1, 2], which is cheaper than a division
    return root * root


@triton.jit
def density_slopes(x, size, share, theta, unit, MAP: tl.constexpr):
    """Return g of `density`, dg / ds and dg / d parameter."""
    g = density(x, size, share, theta, unit, MAP)
    by_theta = g * 0.0
    if MAP.kind == "sigsoftmax" or MAP.kind == "normalized-sigmoid":
        small, z = falling(x, theta, unit, MAP)
        part = g * rising(x, theta, unit, MAP) * tl.where(z < 0.0, 1.0, small)  # g sigma(-z)
        if MAP.kind == "sigsoftmax":
            return g, g + part, part
        return g, part, by_theta
    elif MAP.kind == "softmax-abs":
        return g, tl.where(x < 0.0, -g, tl.where(x > 0.0, g, 0.0)), by_theta
    elif is_power(MAP.kind):
        small = inverse_of(size)
        u = x * (unit * small)
        if MAP.kind == "taylor-softmax":
            by_s = (u + small) * small
        elif MAP.kind == "spherical-softmax":
            by_s = 2.0 * u * small
            by_theta += small * small
        else:
            by_s = tl.where(u > 0.0, small + by_theta, 0.0)
        valid = x != float("-inf")
        return g, tl.where(valid, by_s * share, 0.0), tl.where(valid, by_theta * share, 0.0)
    else:
        return g, g, by_theta

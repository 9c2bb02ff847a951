"""Amounts up to four bounds of a row, and the choice of the next four.

An amount is a number of scores, or for top-p-softmax their mass, the sum of e^(s - max s).
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.names import Bracket
from sparse_attn.kernels.triton.passes import mass_of, sweep
from sparse_attn.kernels.triton.scores import sink_of


@triton.jit
def counted(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `amounts`: the masses up to four bounds, or the numbers of scores above them.

    Masked scores, -inf, have no mass and are above no bound.
    """
    a, b, c, d, top, unit = given
    e, f, g, h = state
    if MAP.kind == "top-p-softmax":
        mass = mass_of(x, top, unit)
        e += tl.sum(tl.where(x <= a, mass, 0.0), 1)
        f += tl.sum(tl.where(x <= b, mass, 0.0), 1)
        g += tl.sum(tl.where(x <= c, mass, 0.0), 1)
        h += tl.sum(tl.where(x <= d, mass, 0.0), 1)
    else:
        e += tl.sum((x > a).to(tl.float32), 1)
        f += tl.sum((x > b).to(tl.float32), 1)
        g += tl.sum((x > c).to(tl.float32), 1)
        h += tl.sum((x > d).to(tl.float32), 1)
    return e, f, g, h


@triton.jit
def inputs_of(bounds, top, unit):
    """Return `given` of `counted`."""
    a, b, c, d = bounds
    return a[:, None], b[:, None], c[:, None], d[:, None], top[:, None], unit


@triton.jit
def up_to(state, base, n, MAP: tl.constexpr):
    """Return the amounts up to four bounds from those of `counted`, over n scores, and a base."""
    a, b, c, d = state
    if MAP.kind == "top-p-softmax":
        return base + a, base + b, base + c, base + d
    else:
        return base + (n - a), base + (n - b), base + (n - c), base + (n - d)


@triton.jit
def amounts(
    block, bounds, top, n, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    """Return the amounts up to four bounds of a row of n scores: numbers of scores, or masses."""
    zero = n * 0.0
    given = inputs_of(bounds, top, block.site.unit)
    state = (zero, zero, zero, zero)
    state = sweep(counted, state, given, block, False, MAP, FLAGS, SHAPE)
    if FLAGS.sink:
        x, columns = sink_of(block.site, SHAPE)
        state = counted(state, given, x, columns, False, MAP)
    return up_to(state, zero, n, MAP)


@triton.jit
def reaches(amount, need, MAP: tl.constexpr):
    """Whether an amount includes the searched score: a mass must exceed `need`."""
    if MAP.kind == "top-p-softmax":
        return amount > need
    else:
        return amount >= need


@triton.jit
def crowded(bracket, need, top, unit, few: tl.constexpr, MAP: tl.constexpr):
    """Whether there may be more than `few` scores from the lower bound up to the result."""
    left = need - bracket.under_low
    if MAP.kind == "top-p-softmax":
        return left > mass_of(bracket.low, top, unit) * few
    else:
        return left > few


@triton.jit
def narrowed(bracket, bound, amount, need, MAP: tl.constexpr):
    """Move an end of low < result <= high to a bound with this amount."""
    low, high, under_low, under_high = bracket
    inside = (bound > low) & (bound < high)
    enough = reaches(amount, need, MAP)
    down = inside & enough
    up = inside & (enough == 0)
    return Bracket(
        tl.where(up, bound, low),
        tl.where(down, bound, high),
        tl.where(up, amount, under_low),
        tl.where(down, amount, under_high),
    )


@triton.jit
def narrowed_by_all(bracket, bounds, found, need, MAP: tl.constexpr):
    bracket = narrowed(bracket, bounds[0], found[0], need, MAP)
    bracket = narrowed(bracket, bounds[1], found[1], need, MAP)
    bracket = narrowed(bracket, bounds[2], found[2], need, MAP)
    return narrowed(bracket, bounds[3], found[3], need, MAP)


@triton.jit
def least_bound(need, found, unit):
    """A score with less than the mass `need` up to it, however the masses are distributed."""
    return found.top + tl.log(need / tl.maximum(found.n, 1.0)) / unit


@triton.jit
def guessed(theta, need, found, unit, MAP: tl.constexpr):
    """Guess four bounds as if the scores were normally distributed."""
    n = tl.maximum(found.n, 1.0)
    mean = found.total / n
    deviation = tl.sqrt(tl.maximum(found.squares / n - mean * mean, 0.0))
    # Tukey's lambda, which approximates the inverse of the normal distribution
    z = 4.91 * (tl.exp2(0.14 * tl.log2(theta)) - tl.exp2(0.14 * tl.log2(1.0 - theta)))
    if MAP.kind == "top-p-softmax":
        # the masses of normal scores are normal too, around a larger mean
        center = mean + (deviation * unit - z) * deviation
        low = least_bound(need, found, unit)
        wide = found.top - low
        return (
            between(center - 0.4 * deviation, low + 0.02 * wide, low + 0.7 * wide),
            between(center - 0.08 * deviation, low + 0.04 * wide, low + 0.85 * wide),
            between(center, low + 0.06 * wide, low + 0.93 * wide),
            between(center + 0.25 * deviation, low + 0.08 * wide, low + 0.98 * wide),
        )
    else:
        center = mean + z * deviation
        share = tl.minimum(tl.maximum(7.0 / n, 0.015), 0.1)  # of the keys, in half a gap
        half = tl.minimum(share * 2.5 * tl.exp(0.5 * z * z), 0.5) * deviation
        return center - 4.0 * half, center - 2.0 * half, center, center + 2.0 * half


@triton.jit
def between(x, low, high):
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def interpolated(bracket, need, found, pitch, unit, MAP: tl.constexpr):
    """Interpolate four bounds around the place of `need`; beyond the outer ones, extrapolate.

    pitch: distance of neighbouring scores, by the first four bounds.
    """
    low, high, under_low, under_high = bracket
    if MAP.kind == "top-p-softmax":  # the logarithm of the mass is nearly linear
        low = tl.maximum(low, least_bound(need, found, unit))
        under_low = tl.maximum(under_low, 1e-2 * need)
        place = tl.log(need / under_low) / tl.log(under_high / under_low)
        width = tl.where((bracket.low > float("-inf")) & (high < found.top), 0.08, 0.2)
        wide = high - low
        return (
            low + between(place - 2.2 * width, 0.03, 0.7) * wide,
            low + between(place - 1.1 * width, 0.08, 0.85) * wide,
            low + between(place, 0.15, 0.92) * wide,
            low + between(place + width, 0.3, 0.98) * wide,
        )
    else:
        n = tl.maximum(under_high - under_low, 1.0)
        place = need - under_low
        rest = n - place
        width = tl.maximum(tl.sqrt(tl.maximum(place * rest, 0.0) / n), 4.0)
        step = (high - low) / n
        a = between(place - 5.5 * width, 0.02 * n, 0.98 * n) * step
        b = between(place - 2.8 * width, 0.02 * n, 0.98 * n) * step
        c = between(place - 0.6 * width, 0.02 * n, 0.98 * n) * step
        d = between(place + 1.2 * width, 0.02 * n, 0.98 * n) * step
        far = place * pitch
        last = high == found.top
        a, b = tl.where(last, 0.6 * far, a), tl.where(last, far, b)
        c, d = tl.where(last, 1.6 * far, c), tl.where(last, 3.0 * far, d)
        first = low == float("-inf")
        start = tl.where(first, high, low)
        far = (rest + 0.5) * pitch
        a, b = tl.where(first, -3.0 * far, a), tl.where(first, -1.6 * far, b)
        c, d = tl.where(first, -far, c), tl.where(first, -0.6 * far, d)
        return start + a, start + b, start + c, start + d


@triton.jit
def ordered(bits):
    """Turn the bits of floats into integers in the order of the floats, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def thirds(bracket):
    """Divide the numbers between the ends by three, and the floats, which bounds the passes."""
    low, high, _, _ = bracket
    third = (high - low) / 3.0
    first = ordered(low.to(tl.int32, bitcast=True))
    last = ordered(high.to(tl.int32, bitcast=True))
    step = tl.maximum(last // 3 - first // 3, 1)
    c = ordered(first + step).to(tl.float32, bitcast=True)
    d = ordered(last - step).to(tl.float32, bitcast=True)
    return low + third, high - third, c, d

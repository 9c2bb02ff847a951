"""Search for the score that separates small from large scores of a row, by number or mass.

Rows are not sorted: each pass over a row counts up to two bounds.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.maps import LOG2E, TINY
from sparse_attn.kernels.triton.passes import blank, sweep
from sparse_attn.kernels.triton.scores import sink_of
from sparse_attn.kernels.triton.unnormalized import softpick_size

COUNTS = tl.constexpr(12)  # passes with two bounds; the second stage handles ties


@triton.jit
def mass_of(x, top, unit, MAP: tl.constexpr):
    """e^(s - top), or |e^s - 1| e^-top for softpick."""
    if MAP.kind == "softpick":
        return tl.abs(softpick_size(x * unit, top * unit))
    else:
        return tl.exp2((x - top) * (unit * LOG2E))


@triton.jit
def massed(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `mass`."""
    top, unit = given
    return (state[0] + mass_of(x, top, unit, MAP),)


@triton.jit
def mass(block, top, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Sum of `mass_of` over a row."""
    given = (top[:, None], block.site.unit)
    sums = sweep(massed, (blank(0.0, SHAPE),), given, block, False, MAP, FLAGS, SHAPE)
    total = tl.sum(sums[0], 1)
    if FLAGS.sink:
        x, _ = sink_of(block.site, SHAPE)
        total += tl.sum(mass_of(x, top[:, None], block.site.unit, MAP), 1)
    return total


@triton.jit
def amount(x, bound, top, unit, EDGE: tl.constexpr, MAP: tl.constexpr):
    """1 for each score up to `bound`, or e^(s - top) for top-p-softmax."""
    under = x <= bound
    if MAP.kind == "top-p-softmax":
        return tl.where(under, mass_of(x, top, unit, MAP), 0.0)  # 0 for -inf
    if EDGE:
        under = under & (x != float("-inf"))
    return under.to(tl.float32)


@triton.jit
def counted(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `search`: the amounts up to two bounds."""
    first, second, top, unit = given
    below, within = state
    below += amount(x, first, top, unit, EDGE, MAP)
    return below, within + amount(x, second, top, unit, EDGE, MAP)


@triton.jit
def not_constant(top, amount, MAP: tl.constexpr):
    """Return top, as a result of the loop that needs it.

    Otherwise the compiler computes the masses of kept scores before the loop, which takes as many
    registers as the scores.
    """
    return top + (amount * 0.0)[:, None] if MAP.kind == "top-p-softmax" else top


@triton.jit
def reaches(found, need, MAP: tl.constexpr):
    """Whether an amount includes the searched score: a mass must exceed `need`."""
    if MAP.kind == "top-p-softmax":
        return found > need
    else:
        return found >= need


@triton.jit
def guessed(r, found, low, high):
    """Guess bounds around the quantile of a normal distribution."""
    n = tl.maximum(found.n, 1.0)
    mean = found.total / n
    deviation = tl.sqrt(tl.maximum(found.squares / n - mean * mean, 0.0))
    # Tukey's lambda, which approximates the inverse of the normal distribution
    z = 4.91 * (tl.exp2(0.14 * tl.log2(r)) - tl.exp2(0.14 * tl.log2(1.0 - r)))
    edge = (high - low) * 1e-3
    first = tl.maximum(tl.minimum(mean + (z - 0.3) * deviation, high - 2.0 * edge), low + edge)
    return first, tl.maximum(tl.minimum(mean + (z + 0.3) * deviation, high - edge), first)


@triton.jit
def between(low, high, need, under_low, under_high, MAP: tl.constexpr):
    """Choose two bounds between `low` and `high`, whose amounts are `under_low` and `under_high`.

    They are at one and two thirds, or with many scores in between around the place of `need` if the
    scores are uniformly dense.
    """
    first = low * 0.0 + 1.0 / 3
    second = low * 0.0 + 2.0 / 3
    if MAP.kind == "r-softmax":
        n = tl.maximum(under_high - under_low, 1.0)
        place = (need - under_low + 0.5) / (n + 1.0)
        width = 0.8 / tl.sqrt(n)
        many = n > 24.0
        first = tl.where(many, tl.minimum(tl.maximum(place - width, 0.02), 0.97), first)
        second = tl.where(many, tl.minimum(tl.maximum(place + width, 0.03), 0.98), second)
    return low + first * (high - low), low + second * (high - low)


@triton.jit
def search(block, need, theta, found, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Find the least score of a row whose amount reaches `need`, the maximum if none.

    The first stage narrows bounds around this score, the second steps over single scores.
    """
    unit, top = block.site.unit, found.top[:, None]
    low, high = found.bottom, found.top
    first, second = between(low, high, need, need * 0.0, found.n, MAP)
    if MAP.kind == "r-softmax":
        first, second = guessed(theta, found, low, high)
    under_low, under_high = need * 0.0 + 1.0, found.n
    step = 0
    go = tl.max((low < high).to(tl.int32), 0) > 0
    while go:
        given = (first[:, None], second[:, None], top, unit)
        state = (blank(0.0, SHAPE), blank(0.0, SHAPE))
        state = sweep(counted, state, given, block, False, MAP, FLAGS, SHAPE)
        below, within = tl.sum(state[0], 1), tl.sum(state[1], 1)
        top = not_constant(top, below, MAP)
        if FLAGS.sink:
            x, columns = sink_of(block.site, SHAPE)
            state = counted((x * 0.0, x * 0.0), given, x, columns, False, MAP)
            below += tl.sum(state[0], 1)
            within += tl.sum(state[1], 1)
        narrow = (first > low) & (first <= second) & (second < high)
        at_first, at_second = reaches(below, need, MAP), reaches(within, need, MAP)
        # the largest of low, first and second whose amount is at most `need`
        from_first = narrow & (below <= need)
        from_second = narrow & (within <= need)
        low = tl.where(from_second, second, tl.where(from_first, first, low))
        under_low = tl.where(from_second, within, tl.where(from_first, below, under_low))
        high = tl.where(narrow & at_second, tl.where(at_first, first, second), high)
        under_high = tl.where(narrow & at_second, tl.where(at_first, below, within), under_high)
        low = tl.minimum(low, high)
        first, second = between(low, high, need, under_low, under_high, MAP)
        wide = narrow & (low < high)
        if MAP.kind == "r-softmax":
            wide = wide & (under_high - under_low > 2.0)
        step += 1
        go = (tl.max(wide.to(tl.int32), 0) > 0) & (step < COUNTS)
    return snap(block, low, high, need, found.top, MAP, FLAGS, SHAPE)


@triton.jit
def snapped(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `snap`: amount and largest score up to `middle`, smallest score above `bound`."""
    found, largest, smallest = state
    middle, bound, top, unit = given
    found += amount(x, middle, top, unit, EDGE, MAP)
    largest = tl.maximum(largest, tl.where(x <= middle, x, float("-inf")))
    return found, largest, tl.minimum(smallest, tl.where(x > bound, x, float("inf")))


@triton.jit
def snap(
    block, low, high, need, top, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    """Find the result of `search` in [low, high].

    Both ends become scores, so each step drops a distinct score, even with ties.
    """
    hit = low == high
    middle = high
    # the first step moves the lower end up to a score, later steps move it past the middle
    bound = low - 1e-6 * tl.abs(low) - TINY
    top = top[:, None]
    step = 0
    go = True
    while go:
        given = (middle[:, None], bound[:, None], top, block.site.unit)
        most, least = blank(float("-inf"), SHAPE), blank(float("inf"), SHAPE)
        state = sweep(
            snapped, (blank(0.0, SHAPE), most, least), given, block, False, MAP, FLAGS, SHAPE
        )
        found, largest, smallest = tl.sum(state[0], 1), tl.max(state[1], 1), tl.min(state[2], 1)
        top = not_constant(top, found, MAP)
        if FLAGS.sink:
            x, columns = sink_of(block.site, SHAPE)
            state = (x * 0.0, x * 0.0 - float("inf"), x * 0.0 + float("inf"))
            state = snapped(state, given, x, columns, False, MAP)
            found += tl.sum(state[0], 1)
            largest = tl.maximum(largest, tl.max(state[1], 1))
            smallest = tl.minimum(smallest, tl.min(state[2], 1))
        enough = reaches(found, need, MAP)
        high = tl.where(enough, largest, high)
        low = tl.where(hit, high, tl.where(enough & (step > 0), low, smallest))
        low = tl.minimum(low, high)
        middle = low + 0.5 * (high - low)
        middle = tl.where(middle < high, middle, low)
        bound = middle
        step += 1
        # a row with an infinity becomes NaN
        go = tl.max(((low < high) & (high < float("inf"))).to(tl.int32), 0) > 0
    return high


@triton.jit
def owned(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `quantile`: number of scores up to `value`, and the smallest above it."""
    count, above = state
    value, unit = given
    count += amount(x, value, value, unit, EDGE, MAP)
    return count, tl.minimum(above, tl.where(x > value, x, float("inf")))


@triton.jit
def quantile(block, r, found, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Linear-interpolation quantile of a row's n valid x, as distance from the maximum.

    Returns the distance t, the order statistics below and above, whether they are tied, the share
    of the upper, and -dt / dr.
    """
    n, unit = found.n, block.site.unit
    position = r * tl.maximum(n - 1.0, 0.0)
    below = tl.floor(position)
    share = position - below
    need = below + 1.0
    value = search(block, need, r, found, MAP, FLAGS, SHAPE)
    state = (blank(0.0, SHAPE), blank(float("inf"), SHAPE))
    state = sweep(owned, state, (value[:, None], unit), block, False, MAP, FLAGS, SHAPE)
    count, above = tl.sum(state[0], 1), tl.min(state[1], 1)
    if FLAGS.sink:
        x, columns = sink_of(block.site, SHAPE)
        state = (x * 0.0, x * 0.0 + float("inf"))
        state = owned(state, (value[:, None], unit), x, columns, False, MAP)
        count += tl.sum(state[0], 1)
        above = tl.minimum(above, tl.min(state[1], 1))
    tied = (count > need) | (need >= n)
    gap = tl.where(tied | (n == 0.0), 0.0, above - value)
    t = tl.where(n == 0.0, 0.0, (found.top - value) - share * gap)
    return t, value, above, tied, tl.where(tied, 0.0, share), gap * (n - 1.0)


@triton.jit
def divided(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `cut`: least score from `edge` on, and largest below it."""
    kept, dropped = state
    above = x >= given[0]
    kept = tl.minimum(kept, tl.where(above, x, float("inf")))
    return kept, tl.maximum(dropped, tl.where(above, float("-inf"), x))


@triton.jit
def cut(block, theta, found, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Find the least x that top-p- and threshold-softmax keep.

    It is half-way between the least score kept and the largest dropped, because recomputed scores
    may differ in the last bits; -inf if none is dropped.
    """
    total = mass(block, found.top, MAP, FLAGS, SHAPE)
    if MAP.kind == "top-p-softmax":
        need = (1.0 - theta) * total
        edge = search(block, need, theta, found, MAP, FLAGS, SHAPE)
    else:
        edge = found.top + tl.minimum(tl.log(theta * total), 0.0) / block.site.unit
    state = (blank(float("inf"), SHAPE), blank(float("-inf"), SHAPE))
    state = sweep(divided, state, (edge[:, None],), block, False, MAP, FLAGS, SHAPE)
    kept, dropped = tl.min(state[0], 1), tl.max(state[1], 1)
    if FLAGS.sink:
        x, columns = sink_of(block.site, SHAPE)
        state = (x * 0.0 + float("inf"), x * 0.0 - float("inf"))
        state = divided(state, (edge[:, None],), x, columns, False, MAP)
        kept = tl.minimum(kept, tl.min(state[0], 1))
        dropped = tl.maximum(dropped, tl.max(state[1], 1))
    return 0.5 * kept + 0.5 * dropped

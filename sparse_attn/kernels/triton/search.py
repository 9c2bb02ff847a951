"""The score that separates a row into small and large ones, by their number or their mass.

No row is sorted: bisection, with a pass over the row for each step.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.maps import size_of
from sparse_attn.kernels.triton.scores import FAR, first_of, sink_of, tile_at

COUNTS = tl.constexpr(16)  # bisection steps by amount; the second stage handles ties


@triton.jit
def mass(block, top, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Sum of e^(s - top) over a row, of |size| for softpick."""
    total = tl.full([SHAPE.block_m], 0.0, tl.float32)
    for start in range(block.first, block.last, SHAPE.block_n):
        s, _ = tile_at(start, block, FLAGS, SHAPE)
        total += tl.sum(tl.abs(size_of(s, top[:, None], MAP)), 1)
    if FLAGS.sink:
        s, _ = sink_of(block.site, SHAPE)
        total += tl.sum(tl.abs(size_of(s, top[:, None], MAP)), 1)
    return total


@triton.jit
def amount(s, bound, top, MAP: tl.constexpr):
    """Number of the scores up to `bound`, for top-p-softmax the sum of their e^(s - top)."""
    under = (s <= bound[:, None]) & (s != float("-inf"))
    if MAP.kind == "top-p-softmax":
        return tl.sum(tl.where(under, size_of(s, top[:, None], MAP), 0.0), 1)
    else:
        return tl.sum(under.to(tl.float32), 1)


@triton.jit
def reaches(found, need, MAP: tl.constexpr):
    """Whether an amount includes the score that is searched: a mass must exceed `need`."""
    if MAP.kind == "top-p-softmax":
        return found > need
    else:
        return found >= need


@triton.jit
def search(
    block, need, top, bottom, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    """The least score of a row up to which the amount reaches `need`, the maximum if none.

    Bisects a bound of which this score is the nearest below.
    """
    low = bottom
    high = top
    step = 0
    go = tl.max((low < high).to(tl.int32), 0) > 0
    while go:
        middle = low + 0.5 * (high - low)
        found = tl.full([SHAPE.block_m], 0.0, tl.float32)
        for start in range(block.first, block.last, SHAPE.block_n):
            s, _ = tile_at(start, block, FLAGS, SHAPE)
            found += amount(s, middle, top, MAP)
        if FLAGS.sink:
            s, _ = sink_of(block.site, SHAPE)
            found += amount(s, middle, top, MAP)
        narrow = (middle > low) & (middle < high)
        high = tl.where(narrow & reaches(found, need, MAP), middle, high)
        low = tl.where(narrow & (found <= need), middle, low)
        step += 1
        go = (tl.max((narrow & (low < high)).to(tl.int32), 0) > 0) & (step < COUNTS)
    return snap(block, low, high, need, top, MAP, FLAGS, SHAPE)


@triton.jit
def around(s, middle, floor, step):
    """The largest score up to `middle`, and the smallest above it; in step 0, from `floor` on."""
    inside = s != float("-inf")
    under = (s <= middle[:, None]) & inside
    # the first step moves the lower end up onto a score, later ones past the middle
    over = tl.where(step == 0, s >= floor[:, None], s > middle[:, None]) & inside
    largest = tl.max(tl.where(under, s, float("-inf")), 1)
    return largest, tl.min(tl.where(over, s, float("inf")), 1)


@triton.jit
def snap(
    block, low, high, need, top, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    """What `search` returns, which is in [low, high].

    Both ends become scores, so that each step drops a distinct score, even with ties.
    """
    hit = low == high
    middle = high
    floor = low
    step = 0
    go = True
    while go:
        found = tl.full([SHAPE.block_m], 0.0, tl.float32)
        largest = tl.full([SHAPE.block_m], float("-inf"), tl.float32)
        smallest = tl.full([SHAPE.block_m], float("inf"), tl.float32)
        for start in range(block.first, block.last, SHAPE.block_n):
            s, _ = tile_at(start, block, FLAGS, SHAPE)
            found += amount(s, middle, top, MAP)
            below, above = around(s, middle, floor, step)
            largest, smallest = tl.maximum(largest, below), tl.minimum(smallest, above)
        if FLAGS.sink:
            s, _ = sink_of(block.site, SHAPE)
            found += amount(s, middle, top, MAP)
            below, above = around(s, middle, floor, step)
            largest, smallest = tl.maximum(largest, below), tl.minimum(smallest, above)
        enough = reaches(found, need, MAP)
        high = tl.where(enough, largest, high)
        low = tl.where(hit, high, tl.where(enough & (step > 0), low, smallest))
        low = tl.minimum(low, high)
        middle = low + 0.5 * (high - low)
        middle = tl.where(middle < high, middle, low)
        step += 1
        go = tl.max((low < high).to(tl.int32), 0) > 0
    return high


@triton.jit
def owners(s, columns, value, at_low, above, at_above):
    """The first key of a score, the next larger score and its first key, with one more tile."""
    at_low = tl.minimum(at_low, first_of(s == value[:, None], columns))
    tile_above = tl.min(tl.where(s > value[:, None], s, float("inf")), 1)
    here = first_of(s == tile_above[:, None], columns)
    at_above = tl.where(tile_above < above, here, at_above)
    return at_low, tl.minimum(above, tile_above), at_above


@triton.jit
def quantile(
    block, r, top, bottom, n, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    """Linear-interpolation quantile of a row's n valid scores, as its distance from the maximum.

    Returns the distance t, the keys that own the lower and the upper order statistic, the share of
    the upper, and dQ/dr.
    """
    position = r * tl.maximum(n - 1.0, 0.0)
    below = tl.floor(position)
    share = position - below
    need = below + 1.0
    value = search(block, need, top, bottom, MAP, FLAGS, SHAPE)
    count = tl.full([SHAPE.block_m], 0.0, tl.float32)
    above = tl.full([SHAPE.block_m], float("inf"), tl.float32)
    at_low = tl.full([SHAPE.block_m], FAR, tl.int32)
    at_above = tl.full([SHAPE.block_m], FAR, tl.int32)
    for start in range(block.first, block.last, SHAPE.block_n):
        s, columns = tile_at(start, block, FLAGS, SHAPE)
        count += amount(s, value, top, MAP)
        at_low, above, at_above = owners(s, columns, value, at_low, above, at_above)
    if FLAGS.sink:
        s, columns = sink_of(block.site, SHAPE)
        count += amount(s, value, top, MAP)
        at_low, above, at_above = owners(s, columns, value, at_low, above, at_above)
    tied = (count > need) | (need >= n)
    gap = tl.where(tied | (n == 0.0), 0.0, above - value)
    t = tl.where(n == 0.0, 0.0, (top - value) - share * gap)
    at_high = tl.where(tied, at_low, at_above)
    return t, at_low, at_high, share, gap * (n - 1.0)


@triton.jit
def cut(
    block, theta, top, bottom, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    """Distance from the maximum of the scores that top-p- and threshold-softmax keep.

    Half-way between the least score kept and the largest dropped, infinite if none is: recomputed
    scores may differ in the last bits.
    """
    total = mass(block, top, MAP, FLAGS, SHAPE)
    if MAP.kind == "top-p-softmax":
        edge = search(block, (1.0 - theta) * total, top, bottom, MAP, FLAGS, SHAPE)
    else:
        edge = tl.where(theta * total < 1.0, top + tl.log(theta * total), top)
    kept = tl.full([SHAPE.block_m], float("inf"), tl.float32)
    dropped = tl.full([SHAPE.block_m], float("-inf"), tl.float32)
    for start in range(block.first, block.last, SHAPE.block_n):
        s, _ = tile_at(start, block, FLAGS, SHAPE)
        above = s >= edge[:, None]
        kept = tl.minimum(kept, tl.min(tl.where(above, s, float("inf")), 1))
        dropped = tl.maximum(dropped, tl.max(tl.where(above, float("-inf"), s), 1))
    if FLAGS.sink:
        above = edge <= block.site.sink
        kept = tl.minimum(kept, tl.where(above, block.site.sink, float("inf")))
        dropped = tl.maximum(dropped, tl.where(above, float("-inf"), block.site.sink))
    return 0.5 * ((top - kept) + (top - dropped))

"""Row statistics of the mappings that are not pointwise: maximum, quantile, threshold.

If a row fits on chip (SHORT), its scores are computed once and kept; otherwise each pass recomputes
them tile by tile and skips tiles without support.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.maps import (
    TINY,
    exponent,
    nan_of,
    newton_step,
    powers,
    scaled,
    temperature_of,
)
from sparse_attn.kernels.triton.names import Statistics
from sparse_attn.kernels.triton.scores import load_rows, scores_of

FAR = tl.constexpr(2147483647)
COUNTS = tl.constexpr(16)  # bisection steps by counting; the second stage handles ties
STEPS = tl.constexpr(40)  # limit for Newton's method, which takes 2 to 14
RECOMPUTED = tl.constexpr(1e-5)  # relative difference of recomputed scores
SETTLED = tl.constexpr(1e-6)  # stop when tau moves less than this


@triton.jit
def tile_at(start, block, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Scores [BM, BN] of the keys from `start` on, and the keys."""
    columns = start + tl.arange(0, SHAPE.block_n)
    if SHAPE.short:
        s = block.kept
    else:
        k = load_rows(block.keys, columns, block.site.n_keys, SHAPE)
        s, _ = scores_of(k, columns, block.site, FLAGS)
    return s, columns


@triton.jit
def first_of(hit, columns):
    """First key at which a row of `hit` is true, FAR if none."""
    return tl.min(tl.where(hit, columns[None, :], FAR), 1)


@triton.jit
def is_live(alive, start, MAP: tl.constexpr, SHAPE: tl.constexpr):
    """Whether a tile may still hold support."""
    if MAP.skip:
        return tl.load(alive + start // SHAPE.block_n) != 0
    else:
        return True


@triton.jit
def survey(
    block, reach, MAP: tl.constexpr, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """Maximum, its first key, minimum, sum and number of the valid scores of a row.

    The sum is NaN or infinite if a score is. With `skip`, a tile whose scores are all at least
    `reach` below the running maximum is marked dead, since the maximum only grows.
    """
    top = tl.full([SHAPE.block_m], float("-inf"), tl.float32)
    bottom = tl.full([SHAPE.block_m], float("inf"), tl.float32)
    total = tl.full([SHAPE.block_m], 0.0, tl.float32)
    n = tl.full([SHAPE.block_m], 0.0, tl.float32)
    at_top = tl.full([SHAPE.block_m], FAR, tl.int32)
    for start in range(block.first, block.last, SHAPE.block_n):
        s, columns = tile_at(start, block, FLAGS, SHAPE)
        inside = s != float("-inf")
        tile_top = tl.max(s, 1)
        here = first_of((s == tile_top[:, None]) & inside, columns)
        at_top = tl.where(tile_top > top, here, at_top)
        top = tl.maximum(top, tile_top)
        bottom = tl.minimum(bottom, tl.min(tl.where(inside, s, float("inf")), 1))
        total += tl.sum(tl.where(inside, s, 0.0), 1)
        n += tl.sum(inside.to(tl.float32), 1)
        if MAP.skip:
            dead = tile_top < top - reach - RECOMPUTED * tl.abs(top)  # NaN is not dead
            tl.store(
                block.alive + start // SHAPE.block_n, tl.max(1 - dead.to(tl.int32), 0).to(tl.int8)
            )
    empty = n == 0.0
    return tl.where(empty, 0.0, top), at_top, tl.where(empty, 0.0, bottom), total, n


@triton.jit
def quantile(
    block, r, top, bottom, n, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    """Linear-interpolation quantile of a row's n valid scores, as its distance from the maximum.

    Bisects a bound with `need` scores below it, by counting; the largest of these is the order
    statistic, so the row is not sorted.

    Returns the distance t, the keys that own the lower and the upper order statistic, the share of
    the upper, and dQ/dr.
    """
    position = r * tl.maximum(n - 1.0, 0.0)
    below = tl.floor(position)
    share = position - below
    need = below + 1.0
    low = bottom
    high = top
    step = 0
    go = tl.max((low < high).to(tl.int32), 0) > 0
    while go:
        middle = low + 0.5 * (high - low)
        count = tl.full([SHAPE.block_m], 0.0, tl.float32)
        for start in range(block.first, block.last, SHAPE.block_n):
            s, _ = tile_at(start, block, FLAGS, SHAPE)
            count += tl.sum(((s <= middle[:, None]) & (s != float("-inf"))).to(tl.float32), 1)
        narrow = (middle > low) & (middle < high)
        high = tl.where(narrow & (count >= need), middle, high)
        low = tl.where(narrow & ((count < need) | (count == need)), middle, low)
        step += 1
        go = (tl.max((narrow & (low < high)).to(tl.int32), 0) > 0) & (step < COUNTS)
    return snap(block, low, high, top, need, share, n, FLAGS, SHAPE)


@triton.jit
def snap(
    block, low, high, top, need, share, n, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """The order statistic in [low, high], and what `quantile` returns.

    Both ends are scores, so that each step drops a distinct score, even with ties.
    """
    hit = low == high
    middle = high
    floor = low
    step = 0
    go = True
    while go:
        count = tl.full([SHAPE.block_m], 0.0, tl.float32)
        largest = tl.full([SHAPE.block_m], float("-inf"), tl.float32)
        smallest = tl.full([SHAPE.block_m], float("inf"), tl.float32)
        for start in range(block.first, block.last, SHAPE.block_n):
            s, _ = tile_at(start, block, FLAGS, SHAPE)
            under = (s <= middle[:, None]) & (s != float("-inf"))
            count += tl.sum(under.to(tl.float32), 1)
            largest = tl.maximum(largest, tl.max(tl.where(under, s, float("-inf")), 1))
            # the first step moves the lower end up onto a score, later ones past the middle
            over = tl.where(step == 0, s >= floor[:, None], s > middle[:, None])
            over = over & (s != float("-inf"))
            smallest = tl.minimum(smallest, tl.min(tl.where(over, s, float("inf")), 1))
        enough = count >= need
        high = tl.where(enough, largest, high)
        low = tl.where(hit, high, tl.where(enough & (step > 0), low, smallest))
        low = tl.minimum(low, high)
        middle = low + 0.5 * (high - low)
        middle = tl.where(middle < high, middle, low)
        step += 1
        go = tl.max((low < high).to(tl.int32), 0) > 0
    count = tl.full([SHAPE.block_m], 0.0, tl.float32)
    above = tl.full([SHAPE.block_m], float("inf"), tl.float32)
    at_low = tl.full([SHAPE.block_m], FAR, tl.int32)
    at_above = tl.full([SHAPE.block_m], FAR, tl.int32)
    for start in range(block.first, block.last, SHAPE.block_n):
        s, columns = tile_at(start, block, FLAGS, SHAPE)
        count += tl.sum(((s <= high[:, None]) & (s != float("-inf"))).to(tl.float32), 1)
        at_low = tl.minimum(at_low, first_of(s == high[:, None], columns))
        tile_above = tl.min(tl.where(s > high[:, None], s, float("inf")), 1)
        here = first_of(s == tile_above[:, None], columns)
        at_above = tl.where(tile_above < above, here, at_above)
        above = tl.minimum(above, tile_above)
    tied = (count > need) | (need >= n)
    gap = tl.where(tied | (n == 0.0), 0.0, above - high)
    t = tl.where(n == 0.0, 0.0, (top - high) - share * gap)
    at_high = tl.where(tied, at_low, at_above)
    return t, at_low, at_high, share, gap * (n - 1.0)


@triton.jit
def project(
    block, top, temperature, theta, MAP: tl.constexpr,
    FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """tau with sum p = 1 for entmax((s - top) / temperature).

    Newton on the convex (sum p)^e, e = alpha - 1: from 0 the iterates rise to the root without
    passing it, so that a tile without support never regains it.
    """
    e = exponent(theta, MAP)
    tau = tl.full([SHAPE.block_m], 0.0, tl.float32)
    step = 0
    go = True
    while go:
        total = tl.full([SHAPE.block_m], 0.0, tl.float32)
        slope = tl.full([SHAPE.block_m], 0.0, tl.float32)
        tl.debug_barrier()  # wait for the live marks of the last pass
        for start in range(block.first, block.last, SHAPE.block_n):
            if is_live(block.alive, start, MAP, SHAPE):
                s, _ = tile_at(start, block, FLAGS, SHAPE)
                y = scaled(s, top[:, None], temperature[:, None], 0.0)
                p, u = powers(y, tau[:, None], e, MAP)
                total += tl.sum(p, 1)
                slope += tl.sum(u, 1)
                if MAP.skip:
                    left = tl.max((p != 0.0).to(tl.int32), 1)
                    tl.store(block.alive + start // SHAPE.block_n, tl.max(left, 0).to(tl.int8))
        move = newton_step(total, slope, e, MAP)
        move = tl.where(slope > 0.0, move, 0.0)
        tau += move
        step += 1
        go = (tl.max(tl.abs(move), 0) > SETTLED) & (step < STEPS)
    return tau


@triton.jit
def statistics(
    block, theta, MAP: tl.constexpr,
    FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Statistics of a threshold or projection row, c of the first left at 1, and the slack."""
    reach = 1.0 / exponent(theta, MAP)
    if MAP.kind == "sparsegen":
        reach = reach * (1.0 - theta)
    top, at_top, bottom, total, n = survey(block, reach, MAP, FLAGS, SHAPE)
    spoiled = total - total + nan_of(theta)
    bottom = tl.where(spoiled == 0.0, bottom, top)  # nothing to select in a NaN row
    slack = RECOMPUTED * tl.maximum(tl.abs(top), tl.abs(bottom))
    zero = n * 0.0
    if MAP.family == "threshold":
        if MAP.kind == "r-softmax":
            r = theta + zero
            t, low, high, share, by_r = quantile(block, r, top, bottom, n, FLAGS, SHAPE)
        else:
            t, low, high, share, by_r = theta + zero, at_top, at_top, zero, zero
        t = tl.where(t < TINY, 0.0, t)  # 1 / t overflows below
        share = tl.where(t == 0.0, 0.0, share)
        return Statistics(top + spoiled, t, zero + 1.0, share, by_r, low, high), slack
    else:
        temperature, by_total, by_theta = temperature_of(total, n, theta, MAP)
        tau = project(block, top, temperature, theta, MAP, FLAGS, SHAPE)
        by_total = tl.where(temperature == 0.0, 0.0, by_total)
        stats = Statistics(top, temperature, tau + spoiled, by_total, by_theta, at_top, at_top)
        return stats, slack

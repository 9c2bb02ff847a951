"""Row statistics of the mappings that are not pointwise: maximum, threshold, mass.

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
from sparse_attn.kernels.triton.scores import FAR, first_of, sink_of, tile_at
from sparse_attn.kernels.triton.search import cut, mass, quantile
from sparse_attn.kernels.triton.unnormalized import free_statistics

STEPS = tl.constexpr(40)  # limit for Newton's method, which takes 2 to 14
RECOMPUTED = tl.constexpr(1e-5)  # relative difference of recomputed scores
SETTLED = tl.constexpr(1e-6)  # stop when tau moves less than this


@triton.jit
def is_live(alive, start, MAP: tl.constexpr, SHAPE: tl.constexpr):
    """Whether a tile may still hold support."""
    if MAP.skip:
        return tl.load(alive + start // SHAPE.block_n) != 0
    else:
        return True


@triton.jit
def surveyed(s, columns, top, at_top, bottom, total, n):
    """What `survey` finds, with one more tile, and the maximum of that."""
    inside = s != float("-inf")
    tile_top = tl.max(s, 1)
    here = first_of((s == tile_top[:, None]) & inside, columns)
    at_top = tl.where(tile_top > top, here, at_top)
    top = tl.maximum(top, tile_top)
    bottom = tl.minimum(bottom, tl.min(tl.where(inside, s, float("inf")), 1))
    total += tl.sum(tl.where(inside, s, 0.0), 1)
    n += tl.sum(inside.to(tl.float32), 1)
    return top, at_top, bottom, total, n, tile_top


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
        top, at_top, bottom, total, n, tile_top = surveyed(
            s, columns, top, at_top, bottom, total, n
        )
        if MAP.skip:
            dead = tile_top < top - reach - RECOMPUTED * tl.abs(top)  # NaN is not dead
            tl.store(
                block.alive + start // SHAPE.block_n, tl.max(1 - dead.to(tl.int32), 0).to(tl.int8)
            )
    if FLAGS.sink:
        s, columns = sink_of(block.site, SHAPE)
        top, at_top, bottom, total, n, _ = surveyed(s, columns, top, at_top, bottom, total, n)
    empty = n == 0.0
    return tl.where(empty, 0.0, top), at_top, tl.where(empty, 0.0, bottom), total, n


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
        if FLAGS.sink:
            s, _ = sink_of(block.site, SHAPE)
            y = scaled(s, top[:, None], temperature[:, None], 0.0)
            p, u = powers(y, tau[:, None], e, MAP)
            total += tl.sum(p, 1)
            slope += tl.sum(u, 1)
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
    """Statistics of a row, c of threshold and truncated ones left at 1, and the slack."""
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
            t, low, high, share, by_r = quantile(block, r, top, bottom, n, MAP, FLAGS, SHAPE)
        else:
            t, low, high, share, by_r = theta + zero, at_top, at_top, zero, zero
        t = tl.where(t < TINY, 0.0, t)  # 1 / t overflows below
        share = tl.where(t == 0.0, 0.0, share)
        return Statistics(top + spoiled, t, zero + 1.0, share, by_r, low, high), slack
    elif MAP.family == "truncated":
        t = cut(block, theta, top, bottom, MAP, FLAGS, SHAPE)
        return Statistics(top + spoiled, t, zero + 1.0, zero, zero, at_top, at_top), slack
    elif MAP.family == "free":
        total = zero
        if MAP.kind == "softpick":
            total = mass(block, tl.maximum(top, 0.0), MAP, FLAGS, SHAPE)
        elif MAP.kind == "clipped-softmax":
            total = mass(block, top, MAP, FLAGS, SHAPE)
        a, b, c, d, low = free_statistics(total, top, at_top, n, theta, MAP)
        return Statistics(a + spoiled, b, c, d, zero, low, low), slack
    else:
        temperature, by_total, by_theta = temperature_of(total, n, theta, MAP)
        tau = project(block, top, temperature, theta, MAP, FLAGS, SHAPE)
        by_total = tl.where(temperature == 0.0, 0.0, by_total)
        stats = Statistics(top, temperature, tau + spoiled, by_total, by_theta, at_top, at_top)
        return stats, slack

"""Forward kernel: one program per block of queries of a head."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.dropout import drop_of, kept
from sparse_attn.kernels.triton.maps import both_weights, has_second, nan_of
from sparse_attn.kernels.triton.names import Block, Matrix, Statistics
from sparse_attn.kernels.triton.passes import (
    inner_tile,
    inner_tiles,
    is_reached,
    kept_tiles,
    tile_at,
)
from sparse_attn.kernels.triton.pointwise import (
    all_of,
    density,
    is_power,
    least_size,
    share_of,
    shrink_of,
    size_of,
)
from sparse_attn.kernels.triton.saved import store_statistics
from sparse_attn.kernels.triton.scores import (
    FAR,
    SINK,
    edge_at,
    edges_of,
    first_of,
    has_edges,
    head_of,
    key_span,
    load_tile,
    place_of,
    sink_of,
    site_of,
    store_rows,
)
from sparse_attn.kernels.triton.solve import statistics


@triton.jit
def values_at(tile, values, block, EDGE: tl.constexpr, SHAPE: tl.constexpr):
    return load_tile(values, tile * SHAPE.block_n, block.site.n_keys, EDGE, SHAPE)


@triton.jit
def dropped(p, drop, columns, site, FLAGS: tl.constexpr):
    """Set dropped weights of p to 0, without scaling the others."""
    if FLAGS.dropout:
        return tl.where(kept(drop, columns, site), p, 0.0)
    else:
        return p


@triton.jit
def weighted(
    step: tl.constexpr, state, block, values, solved, theta, drop, LISTED: tl.constexpr,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Add the values of all tiles by `step`, like `passes.sweep`."""
    if SHAPE.kept > 0:
        for tile in tl.static_range(tl.constexpr(SHAPE.kept)):
            if is_reached(tile, block.span, SHAPE):
                x, columns = tile_at(tile, block, True, FLAGS, SHAPE)
                v = values_at(tile, values, block, True, SHAPE)
                state = step(state, x, columns, v, block, solved, theta, drop, MAP, FLAGS)
    else:
        for i in range(0, inner_tiles(block, LISTED)):
            tile = inner_tile(i, block, LISTED)
            x, columns = tile_at(tile, block, FLAGS.ragged, FLAGS, SHAPE)
            v = values_at(tile, values, block, FLAGS.ragged, SHAPE)
            state = step(state, x, columns, v, block, solved, theta, drop, MAP, FLAGS)
        if has_edges(FLAGS.ragged, SHAPE.full):
            for i in range(0, edges_of(block.span)):
                tile = edge_at(i, block.span)
                x, columns = tile_at(tile, block, True, FLAGS, SHAPE)
                v = values_at(tile, values, block, True, SHAPE)
                state = step(state, x, columns, v, block, solved, theta, drop, MAP, FLAGS)
    return state


@triton.jit
def pointwise_step(
    state, x, columns, v, block, solved, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr
):
    """Add a tile to the online sums."""
    size, total, out = state
    new = tl.maximum(size, tl.max(size_of(x, theta, block.site.unit, MAP), 1))
    # for rows without a valid score so far
    base = new if is_power(MAP.kind) else tl.where(new == float("-inf"), 0.0, new)
    p = density(x, base[:, None], all_of(MAP.kind), theta, block.site.unit, MAP)
    shrink = shrink_of(size, base, block.site.unit, MAP)
    total = total * shrink + tl.sum(p, 1)
    p = dropped(p, drop, columns, block.site, FLAGS).to(v.dtype)
    out = tl.dot(p, v, out * shrink[:, None], input_precision=FLAGS.precision)
    return new, total, out


@triton.jit
def pointwise_rows(
    block, values, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):
    """Compute out of a block of rows with an online sum."""
    unit = block.site.unit
    size = tl.full([SHAPE.block_m], 0.0, tl.float32) + least_size(theta, MAP)
    total = tl.full([SHAPE.block_m], 0.0, tl.float32)
    if FLAGS.sink:
        virtual, _ = sink_of(block.site, SHAPE)
        size = tl.maximum(size, tl.max(size_of(virtual, theta, unit, MAP), 1))
        total += tl.sum(density(virtual, size[:, None], all_of(MAP.kind), theta, unit, MAP), 1)
    state = (size, total, tl.full([SHAPE.block_m, SHAPE.block_d], 0.0, tl.float32))
    state = weighted(
        pointwise_step, state, block, values, None, theta, drop, False, MAP, FLAGS, SHAPE
    )
    size, total, out = state
    inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
    size = tl.where(total == 0.0, 1.0, size) + nan_of(theta)
    zero = total * 0.0
    none = zero.to(tl.int32)
    stats = Statistics(size, share_of(total, MAP), zero, zero, zero, none, none, zero)
    return out * (inverse + nan_of(theta))[:, None], out, stats


@triton.jit
def solved_step(
    state, x, columns, v, block, solved, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr
):
    """Add a tile to the outputs and the sums of weights, and find the keys of the quantile."""
    out, second, total, total_second, low, high = state
    p, w = both_weights(x, solved, theta, block.site.unit, MAP)
    if MAP.family == "threshold" or MAP.family == "truncated":
        total += tl.sum(p, 1)
    if MAP.grad and (MAP.family == "threshold" or MAP.kind == "softpick"):
        low = tl.minimum(low, first_of(x == solved.low[:, None], columns))
        if MAP.kind == "r-softmax":
            high = tl.minimum(high, first_of(x == solved.high[:, None], columns))
    if has_second(MAP.family, MAP.kind, MAP.grad, MAP.moments):
        total_second += tl.sum(w, 1)
        w = dropped(w, drop, columns, block.site, FLAGS).to(v.dtype)
        second = tl.dot(w, v, second, input_precision=FLAGS.precision)
    p = dropped(p, drop, columns, block.site, FLAGS).to(v.dtype)
    out = tl.dot(p, v, out, input_precision=FLAGS.precision)
    return out, second, total, total_second, low, high


@triton.jit
def solved_rows(
    block, values, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):
    """Compute out of a block of rows whose weights depend on statistics of the whole row."""
    solved = statistics(block, theta, MAP, FLAGS, SHAPE)
    none = tl.full([SHAPE.block_m, SHAPE.block_d], 0.0, tl.float32)
    zero = tl.full([SHAPE.block_m], 0.0, tl.float32)
    far = tl.full([SHAPE.block_m], FAR, tl.int32)
    state = (none, none, zero, zero, far, far)
    state = weighted(
        solved_step, state, block, values, solved, theta, drop, MAP.skip, MAP, FLAGS, SHAPE
    )
    return finished(state, solved, block, theta, MAP, FLAGS, SHAPE)


@triton.jit
def finished(
    state, solved, block, theta, MAP: tl.constexpr, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """Normalise both outputs, and return the statistics for the backward pass."""
    out, second, total, total_second, low, high = state
    stats = solved.stats
    unit = block.site.unit
    if FLAGS.sink:
        x, _ = sink_of(block.site, SHAPE)
        p, w = both_weights(x, solved, theta, unit, MAP)
        total += tl.sum(p, 1)
        total_second += tl.sum(w, 1)
        here = tl.sum(x, 1)
        low = tl.minimum(low, tl.where(here == solved.low, SINK, FAR))
        high = tl.minimum(high, tl.where(here == solved.high, SINK, FAR))
    f = stats.f
    if MAP.family == "threshold" or MAP.family == "truncated":
        inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
        inverse += f - f  # NaN stays
        out = out * inverse[:, None]
        f += tl.log2(tl.where(total == 0.0, 1.0, total))
        if MAP.family == "threshold":
            # for the pull, sum v g - sum v sum p g, with v without 1 / t
            f += tl.log2(stats.b)
            second = (second - total_second[:, None] * out) * inverse[:, None]
    elif MAP.family == "projection":
        second = second / tl.where(total_second == 0.0, 1.0, total_second)[:, None]
    return out, second, Statistics(
        stats.a, stats.b, solved.c, solved.d, stats.e, low, high, f
    )  # fmt: skip


@triton.jit
def attend(
    result, again, saved, block, values, row_ids, theta, drop,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Compute and store the outputs and statistics of a block of rows."""
    site = block.site
    if MAP.family == "pointwise":
        out, second, stats = pointwise_rows(block, values, theta, drop, MAP, FLAGS, SHAPE)
    else:
        out, second, stats = solved_rows(block, values, theta, drop, MAP, FLAGS, SHAPE)
    if FLAGS.dropout:
        out = out * drop.scale
        second = second * drop.scale
    store_rows(result, site.rows, site.n_rows, out, SHAPE)
    if MAP.grad:
        if has_second(MAP.family, MAP.kind, MAP.grad, MAP.moments):
            store_rows(again, site.rows, site.n_rows, second, SHAPE)
        store_statistics(saved, row_ids, stats, MAP)


@triton.jit
def fwd_kernel(
    query, key, value, out, second, q_strides, k_strides, v_strides, o_strides,
    saved, tiles, marks, theta, sink, lengths, seed, pairs, sizes, scaling, dropping,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of queries, fastest, times batch x heads.

    scaling = (scale, softcap); pairs, sizes and the constants as in names.py.
    """
    blocks = tl.cdiv(sizes.rows, SHAPE.block_m)
    number, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    if FLAGS.causal:
        number = blocks - 1 - number  # the longest first
    b, h, h_key = place_of(head, sizes.heads, sizes.groups)
    low = number * SHAPE.block_m
    # rows past the last repeat it: they store to the same place and keep no tile alive
    rows = tl.minimum(low + tl.arange(0, SHAPE.block_m), sizes.rows - 1)
    site = site_of(
        query, q_strides, rows, b, h, lengths, pairs, sizes, scaling, sink, FLAGS, SHAPE
    )  # fmt: skip
    keys, values = head_of(key, k_strides, b, h_key), head_of(value, v_strides, b, h_key)
    span = key_span(low, site, SHAPE, FLAGS)
    scores = kept_tiles(site, keys, span, FLAGS, SHAPE)
    columns = tl.cdiv(sizes.keys, SHAPE.block_n)
    tiles += (head.to(tl.int64) * blocks + number) * (columns + 1)
    place = Matrix(marks + head.to(tl.int64) * blocks * columns + number, blocks)
    block = Block(site, keys, scores, span, tiles, place)
    drop = drop_of(seed, head, dropping, FLAGS)
    row_ids = head.to(tl.int64) * sizes.rows + rows
    attend(
        head_of(out, o_strides, b, h), head_of(second, o_strides, b, h), saved, block, values,
        row_ids, tl.load(theta + h), drop, MAP, FLAGS, SHAPE,
    )  # fmt: skip

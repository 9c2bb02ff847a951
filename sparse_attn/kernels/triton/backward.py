"""Shared backward code, and the first backward kernel: one program per block of queries.

It stores row sums for the second kernel (backward_keys.py). If all queries of a head fit into one
block (WHOLE), it also computes the gradients of keys and values. No atomics: every value is written
once.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.dropout import drop_of, kept
from sparse_attn.kernels.triton.maps import (
    entropy_gradient,
    has_delta,
    has_second,
    row_gradient,
    slopes,
    weights,
)
from sparse_attn.kernels.triton.names import Block, Gradient, Matrix, Part, Tile
from sparse_attn.kernels.triton.passes import inner_tile, inner_tiles
from sparse_attn.kernels.triton.projections import varies, warmth
from sparse_attn.kernels.triton.saved import GRADIENTS, load_statistics, store_gradient
from sparse_attn.kernels.triton.scores import (
    edge_at,
    edges_of,
    gradient_dot,
    has_edges,
    head_of,
    key_span,
    load_rows,
    load_tile,
    place_of,
    scores_of,
    sink_of,
    site_of,
    store_rows,
)


@triton.jit
def tile_of(
    k, columns, stats, site, theta, drop, EDGE: tl.constexpr, MAP: tl.constexpr,
    FLAGS: tl.constexpr,
):  # fmt: skip
    """Compute weights and slopes of a tile of queries and keys."""
    x, chain = scores_of(k, columns, site, EDGE, FLAGS)
    p = weights(x, stats, theta, site.unit, MAP)
    u, by_theta = slopes(x, p, stats, theta, site.unit, MAP)
    used = tl.where(kept(drop, columns, site), p, 0.0) if FLAGS.dropout else p
    return Tile(columns, x, chain, p, used.to(site.q.dtype), u, by_theta)


@triton.jit
def weights_gradient(g, tile, site, drop, MAP: tl.constexpr, FLAGS: tl.constexpr):
    """dL / dp of a tile, from the gradient g to the weights after dropout."""
    if FLAGS.dropout:
        g = tl.where(kept(drop, tile.columns, site), g * drop.scale, 0.0)
    if MAP.family == "free":
        g = tl.where(tile.p > 0.0, g, 0.0)
    return g


@triton.jit
def sink_tile(stats, site, theta, MAP: tl.constexpr, SHAPE: tl.constexpr):
    """Compute `tile_of` for the virtual keys, whose values are 0."""
    x, columns = sink_of(site, SHAPE)
    p = weights(x, stats, theta, site.unit, MAP)
    u, by_theta = slopes(x, p, stats, theta, site.unit, MAP)
    return Tile(columns, x, 1.0, p, p, u, by_theta)


@triton.jit
def scores_gradient(
    tile, g, stats, gradient, theta, unit, EDGE: tl.constexpr, MAP: tl.constexpr,
    FLAGS: tl.constexpr,
):  # fmt: skip
    """dL / d(scale q k^T) of a tile; see maps.py."""
    ds = tile.u * (g - gradient.gamma[:, None])
    if MAP.family == "projection":
        if varies(MAP.kind):
            ds = ds * warmth(stats.b, theta, MAP)[:, None] + gradient.extra[:, None]
        elif MAP.kind == "sparsegen":
            ds = ds * warmth(stats.b, theta, MAP)
    elif MAP.family == "threshold":
        to_low = ((1.0 - stats.d) * gradient.extra)[:, None]
        ds -= tl.where(tile.columns[None, :] == stats.low[:, None], to_low, 0.0)
        if MAP.kind == "r-softmax":
            to_high = (stats.d * gradient.extra)[:, None]
            ds -= tl.where(tile.columns[None, :] == stats.high[:, None], to_high, 0.0)
    elif MAP.kind == "adaptive-temperature":
        ds += gradient.extra[:, None] * entropy_gradient(tile.x, stats, unit)
    elif MAP.kind == "softpick":
        ds -= tl.where(tile.columns[None, :] == stats.low[:, None], gradient.extra[:, None], 0.0)
    if EDGE:
        ds = tl.where(tile.x == float("-inf"), 0.0, ds)
    if FLAGS.softcap:
        ds *= tile.chain
    return ds


@triton.jit
def keys_and_values(number, block, part, EDGE: tl.constexpr, SHAPE: tl.constexpr):
    """Load keys and values of a tile; also return the numbers of the keys."""
    start = number * SHAPE.block_n
    k = load_tile(block.keys, start, block.site.n_keys, EDGE, SHAPE)
    v = load_tile(part.value, start, block.site.n_keys, EDGE, SHAPE)
    return k, v, start + tl.arange(0, SHAPE.block_n)


@triton.jit
def with_moments(
    sums, number, block, part, EDGE: tl.constexpr, MAP: tl.constexpr, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """Add a tile to the row sums of u g, u, v g and v."""
    ug, u, vg, v = sums
    site = block.site
    k, values, columns = keys_and_values(number, block, part, EDGE, SHAPE)
    tile = tile_of(k, columns, part.stats, site, part.theta, part.drop, EDGE, MAP, FLAGS)
    g = tl.dot(part.do, tl.trans(values), input_precision=FLAGS.precision)
    g = weights_gradient(g, tile, site, part.drop, MAP, FLAGS)
    # u of a threshold row is p + v, where a large v may absorb p
    slope = tile.p if MAP.family == "threshold" else tile.u
    ug += tl.sum(slope * g, 1)
    vg += tl.sum(tile.by_theta * g, 1)
    return ug, u + tl.sum(slope, 1), vg, v + tl.sum(tile.by_theta, 1)


@triton.jit
def moments_of(block, part, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Sum u g, u, v g and v over all tiles and the sink, whose values and g are 0."""
    zero = tl.full([SHAPE.block_m], 0.0, tl.float32)
    sums = (zero, zero, zero, zero)
    if MAP.moments:
        for i in range(0, inner_tiles(block, MAP.skip)):
            number = inner_tile(i, block, MAP.skip)
            sums = with_moments(sums, number, block, part, FLAGS.ragged, MAP, FLAGS, SHAPE)
        if has_edges(FLAGS.ragged, SHAPE.full):
            for i in range(0, edges_of(block.span)):
                number = edge_at(i, block.span)
                sums = with_moments(sums, number, block, part, True, MAP, FLAGS, SHAPE)
        if FLAGS.sink:
            virtual = sink_tile(part.stats, block.site, part.theta, MAP, SHAPE)
            ug, u, vg, v = sums
            sums = (ug, u + tl.sum(virtual.u, 1), vg, v + tl.sum(virtual.by_theta, 1))
    return sums


@triton.jit
def with_keys(
    dq, number, block, part, gradient, dk, dv, WHOLE: tl.constexpr, EDGE: tl.constexpr,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Add a tile to dq of a block of rows; if WHOLE, store the gradients of its keys."""
    site, do = block.site, part.do
    k, v, columns = keys_and_values(number, block, part, EDGE, SHAPE)
    g = tl.dot(do, tl.trans(v), input_precision=FLAGS.precision)
    tile = tile_of(k, columns, part.stats, site, part.theta, part.drop, EDGE, MAP, FLAGS)
    if WHOLE:
        to_values = tl.dot(tl.trans(tile.used), do, input_precision=FLAGS.precision)
        if FLAGS.dropout:
            to_values = to_values * part.drop.scale
        store_rows(dv, columns, site.all_keys, to_values, SHAPE)
    g = weights_gradient(g, tile, site, part.drop, MAP, FLAGS)
    ds = scores_gradient(tile, g, part.stats, gradient, part.theta, site.unit, EDGE, MAP, FLAGS)
    if WHOLE:
        to_keys = gradient_dot(tl.trans(ds), site.q, None, FLAGS, SHAPE) * site.scale
        store_rows(dk, columns, site.all_keys, to_keys, SHAPE)
    return gradient_dot(ds, k, dq, FLAGS, SHAPE)


@triton.jit
def bwd_dq_kernel(
    query, key, value, out, second, grad, dq, dk, dv,
    q_strides, k_strides, v_strides, o_strides, g_strides, dq_strides, dk_strides, dv_strides,
    saved, row_gradients, tiles, theta, sink, lengths, seed, pairs, sizes, scaling, dropping,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of queries, fastest, times batch x heads; arguments as `fwd_kernel`."""
    blocks = tl.cdiv(sizes.rows, SHAPE.block_m)
    number, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    if FLAGS.causal:
        number = blocks - 1 - number  # longest blocks first
    b, h, h_key = place_of(head, sizes.heads, sizes.groups)
    low = number * SHAPE.block_m
    rows = low + tl.arange(0, SHAPE.block_m)
    site = site_of(
        query, q_strides, rows, b, h, lengths, pairs, sizes, scaling, sink, FLAGS, SHAPE
    )  # fmt: skip
    keys, values = head_of(key, k_strides, b, h_key), head_of(value, v_strides, b, h_key)
    to_keys, to_values = head_of(dk, dk_strides, b, h_key), head_of(dv, dv_strides, b, h_key)
    row_ids = head.to(tl.int64) * sizes.rows + rows
    inside = rows < sizes.rows
    tiles += (head.to(tl.int64) * blocks + number) * (tl.cdiv(sizes.keys, SHAPE.block_n) + 1)
    block = Block(site, keys, (), key_span(low, site, SHAPE, FLAGS), tiles, Matrix(tiles, 0))
    stats = load_statistics(saved, row_ids, inside, MAP)
    drop = drop_of(seed, head, dropping, FLAGS)
    theta_h = tl.load(theta + h)
    do = load_rows(head_of(grad, g_strides, b, h), rows, sizes.rows, SHAPE)
    part = Part(values, do, stats, theta_h, drop)

    delta = tl.full([SHAPE.block_m], 0.0, tl.float32)
    again = delta
    if has_delta(MAP.family, MAP.kind):
        o = load_rows(head_of(out, o_strides, b, h), rows, sizes.rows, SHAPE)
        delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    if has_second(MAP.family, MAP.kind, MAP.grad, MAP.moments):
        o = load_rows(head_of(second, o_strides, b, h), rows, sizes.rows, SHAPE)
        again = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    sums = moments_of(block, part, MAP, FLAGS, SHAPE)
    gamma, extra, by_parameter = row_gradient(delta, again, sums, stats, site.unit, MAP)
    gradient = Gradient(gamma, extra)
    store_gradient(row_gradients, row_ids, gradient, by_parameter, inside, MAP)
    if FLAGS.sink:
        virtual = sink_tile(stats, site, theta_h, MAP, SHAPE)
        by_sink = scores_gradient(
            virtual, virtual.x * 0.0, stats, gradient, theta_h, site.unit, False, MAP, FLAGS
        )
        tl.store(row_gradients + row_ids * GRADIENTS + 3, tl.sum(by_sink, 1), mask=inside)

    result = tl.full([SHAPE.block_m, SHAPE.block_d], 0.0, tl.float32)
    for i in range(0, inner_tiles(block, MAP.skip)):
        result = with_keys(
            result, inner_tile(i, block, MAP.skip), block, part, gradient, to_keys, to_values,
            WHOLE, FLAGS.ragged, MAP, FLAGS, SHAPE,
        )  # fmt: skip
    if has_edges(FLAGS.ragged, SHAPE.full):
        for i in range(0, edges_of(block.span)):
            result = with_keys(
                result, edge_at(i, block.span), block, part, gradient, to_keys, to_values, WHOLE,
                True, MAP, FLAGS, SHAPE,
            )  # fmt: skip
    store_rows(head_of(dq, dq_strides, b, h), rows, sizes.rows, result * site.scale, SHAPE)
    if WHOLE:  # padding has no gradient
        nothing = tl.full([SHAPE.block_n, SHAPE.block_d], 0.0, tl.float32)
        for tile in range(block.span.last, tl.cdiv(sizes.keys, SHAPE.block_n)):
            columns = tile * SHAPE.block_n + tl.arange(0, SHAPE.block_n)
            store_rows(to_keys, columns, sizes.keys, nothing, SHAPE)
            store_rows(to_values, columns, sizes.keys, nothing, SHAPE)

"""Shared backward code, and the first backward kernel: one program per block of queries.

It stores row sums for the second kernel (backward_keys.py). If all queries of a head fit into one
block (WHOLE), it also computes the gradients of keys and values. No atomics: every value is written
once.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.maps import row_gradient, slopes, weights
from sparse_attn.kernels.triton.names import Gradient, Statistics, Tile
from sparse_attn.kernels.triton.scores import (
    drop_of,
    dropped,
    head_of,
    key_range,
    load_rows,
    place_of,
    scores_of,
    sink_of,
    site_of,
    store_rows,
)
from sparse_attn.kernels.triton.solve import is_live


@triton.jit
def load_statistics(saved, indices, row_ids, num_rows, inside, MAP: tl.constexpr):
    """Load what the forward kernel stored for a block of rows."""
    a = tl.load(saved + row_ids, mask=inside, other=0.0)
    b = tl.load(saved + num_rows + row_ids, mask=inside, other=0.0)
    c, d, e = a, a, a
    low = (row_ids * 0).to(tl.int32)
    high = low
    if MAP.family != "pointwise":
        c = tl.load(saved + 2 * num_rows + row_ids, mask=inside, other=0.0)
        d = tl.load(saved + 3 * num_rows + row_ids, mask=inside, other=0.0)
        e = tl.load(saved + 4 * num_rows + row_ids, mask=inside, other=0.0)
        low = tl.load(indices + row_ids, mask=inside, other=0)
        high = tl.load(indices + num_rows + row_ids, mask=inside, other=0)
    return Statistics(a, b, c, d, e, low, high)


@triton.jit
def tile_of(k, v, columns, do, stats, site, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr):
    """Weights, their gradients and slopes for a tile of queries and keys."""
    s, chain = scores_of(k, columns, site, FLAGS)
    p = weights(s, stats, columns, theta, MAP)
    g = tl.dot(do, tl.trans(v), input_precision=FLAGS.precision)
    used = p
    if FLAGS.dropout:
        used = dropped(p, drop, columns, site)
        g = dropped(g, drop, columns, site)
    if MAP.family == "free":
        g = tl.where(p > 0.0, g, 0.0)
    u, by_theta = slopes(s, p, stats, columns, theta, MAP)
    return Tile(k, columns, s, chain, p, used, g, u, by_theta)


@triton.jit
def sink_tile(stats, site, theta, MAP: tl.constexpr, SHAPE: tl.constexpr):
    """As `tile_of`, of the virtual keys, whose values are 0."""
    s, columns = sink_of(site, SHAPE)
    p = weights(s, stats, columns, theta, MAP)
    u, by_theta = slopes(s, p, stats, columns, theta, MAP)
    return Tile(s, columns, s, 1.0, p, p, s * 0.0, u, by_theta)


@triton.jit
def scores_gradient(tile, stats, gradient, MAP: tl.constexpr):
    """dL / d(q k^T) of a tile; see maps.py."""
    ds = tile.u * (tile.g - gradient.gamma[:, None])
    if MAP.family == "projection":
        warm = tl.where(stats.b > 0.0, stats.b, 1.0)
        ds = ds / warm[:, None] + gradient.extra[:, None]
    elif MAP.family == "threshold":
        to_low = ((1.0 - stats.d) * gradient.extra)[:, None]
        to_high = (stats.d * gradient.extra)[:, None]
        ds -= tl.where(tile.columns[None, :] == stats.low[:, None], to_low, 0.0)
        ds -= tl.where(tile.columns[None, :] == stats.high[:, None], to_high, 0.0)
    elif MAP.kind == "softpick":
        ds -= tl.where(tile.columns[None, :] == stats.low[:, None], gradient.extra[:, None], 0.0)
    return tl.where(tile.s == float("-inf"), 0.0, ds) * tile.chain


@triton.jit
def load_tile(
    start, keys, values, do, stats, site, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    columns = start + tl.arange(0, SHAPE.block_n)
    k = load_rows(keys, columns, site.n_keys, SHAPE)
    v = load_rows(values, columns, site.n_keys, SHAPE)
    return tile_of(k, v, columns, do, stats, site, theta, drop, MAP, FLAGS)


@triton.jit
def query_rows(
    site, keys, values, do, o, stats, alive, theta, drop, row_ids, num_rows, row_gradients, dk, dv,
    MOMENTS: tl.constexpr, WHOLE: tl.constexpr, MAP: tl.constexpr, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """dq of a block of rows; stores the rows' `Gradient`, and gradients of parameter and sink."""
    if SHAPE.short:
        tile = load_tile(0, keys, values, do, stats, site, theta, drop, MAP, FLAGS, SHAPE)
    first, last = key_range(site, SHAPE, FLAGS)
    zero = tl.full([SHAPE.block_m], 0.0, tl.float32)
    delta, ug, u_sum, vg, v_sum = zero, zero, zero, zero, zero
    if MOMENTS:
        for start in range(first, last, SHAPE.block_n):
            if is_live(alive, start, MAP, SHAPE):
                if not SHAPE.short:
                    tile = load_tile(
                        start, keys, values, do, stats, site, theta, drop, MAP, FLAGS, SHAPE
                    )
                delta += tl.sum(tile.p * tile.g, 1)
                ug += tl.sum(tile.u * tile.g, 1)
                u_sum += tl.sum(tile.u, 1)
                vg += tl.sum(tile.by_theta * tile.g, 1)
                v_sum += tl.sum(tile.by_theta, 1)
    else:
        delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    if FLAGS.sink:
        virtual = sink_tile(stats, site, theta, MAP, SHAPE)
        u_sum += tl.sum(virtual.u, 1)
        v_sum += tl.sum(virtual.by_theta, 1)
    gamma, extra, by_parameter = row_gradient(ug, u_sum, vg, v_sum, delta, stats, MAP)
    inside = site.rows < site.n_rows
    if FLAGS.sink:
        by_sink = tl.sum(scores_gradient(virtual, stats, Gradient(gamma, extra), MAP), 1)
        tl.store(row_gradients + 3 * num_rows + row_ids, by_sink, mask=inside)
    tl.store(row_gradients + row_ids, gamma, mask=inside)
    tl.store(row_gradients + num_rows + row_ids, by_parameter, mask=inside)
    if MAP.family != "pointwise":
        tl.store(row_gradients + 2 * num_rows + row_ids, extra, mask=inside)
    dq = tl.full([SHAPE.block_m, SHAPE.block_d], 0.0, tl.float32)
    for start in range(first, last, SHAPE.block_n):
        if is_live(alive, start, MAP, SHAPE):
            if not SHAPE.short:
                tile = load_tile(
                    start, keys, values, do, stats, site, theta, drop, MAP, FLAGS, SHAPE
                )
            ds = scores_gradient(tile, stats, Gradient(gamma, extra), MAP).to(site.q.dtype)
            dq += tl.dot(ds, tile.k, input_precision=FLAGS.precision)
            if WHOLE:
                store_keys(dk, dv, ds, tile, do, site, FLAGS, SHAPE)
    return dq


@triton.jit
def store_keys(dk, dv, ds, tile, do, site, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Gradients of the keys and values of a head whose queries are all in this block."""
    to_keys = tl.dot(tl.trans(ds), site.q, input_precision=FLAGS.precision)
    to_values = tl.dot(tl.trans(tile.used.to(do.dtype)), do, input_precision=FLAGS.precision)
    store_rows(dk, tile.columns, site.all_keys, to_keys, SHAPE)
    store_rows(dv, tile.columns, site.all_keys, to_values, SHAPE)
    if SHAPE.halved:
        padding = tile.columns + SHAPE.block_n
        nothing = tl.full([SHAPE.block_n, SHAPE.block_d], 0.0, tl.float32)
        store_rows(dk, padding, site.all_keys, nothing, SHAPE)
        store_rows(dv, padding, site.all_keys, nothing, SHAPE)


@triton.jit
def bwd_dq_kernel(
    query, key, value, out, grad, dq, dk, dv,
    q_strides, k_strides, v_strides, o_strides, g_strides, dq_strides, dk_strides, dv_strides,
    saved, indices, row_gradients, alive, alive_stride, theta, sink, lengths, seed, pairs,
    sizes, scaling, rate,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr, HALF: tl.constexpr,
    MOMENTS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of queries, fastest, times batch x heads; arguments as `fwd_kernel`.

    MOMENTS: whether other row sums than delta, which follows from `out`, are needed.
    """
    blocks = tl.cdiv(sizes.rows, SHAPE.block_m)
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, h, h_key = place_of(head, sizes.heads, sizes.groups)
    site = site_of(
        query, q_strides, block, b, h, lengths, pairs, sizes, scaling, sink, FLAGS, SHAPE
    )  # fmt: skip
    keys, values = head_of(key, k_strides, b, h_key), head_of(value, v_strides, b, h_key)
    to_keys, to_values = head_of(dk, dk_strides, b, h_key), head_of(dv, dv_strides, b, h_key)
    do = load_rows(head_of(grad, g_strides, b, h), site.rows, sizes.rows, SHAPE)
    o = do
    if not MOMENTS:
        o = load_rows(head_of(out, o_strides, b, h), site.rows, sizes.rows, SHAPE)
    row_ids = head.to(tl.int64) * sizes.rows + site.rows
    stats = load_statistics(saved, indices, row_ids, sizes.num_rows, site.rows < sizes.rows, MAP)
    alive += (head.to(tl.int64) * blocks + block) * alive_stride
    drop = drop_of(seed, head, rate, FLAGS)
    theta_h = tl.load(theta + h)
    if HALF is None:
        result = query_rows(
            site, keys, values, do, o, stats, alive, theta_h, drop, row_ids, sizes.num_rows,
            row_gradients, to_keys, to_values, MOMENTS, WHOLE, MAP, FLAGS, SHAPE,
        )  # fmt: skip
    elif site.n_keys <= HALF.block_n:
        result = query_rows(
            site, keys, values, do, o, stats, alive, theta_h, drop, row_ids, sizes.num_rows,
            row_gradients, to_keys, to_values, MOMENTS, WHOLE, MAP, FLAGS, HALF,
        )  # fmt: skip
    else:
        result = query_rows(
            site, keys, values, do, o, stats, alive, theta_h, drop, row_ids, sizes.num_rows,
            row_gradients, to_keys, to_values, MOMENTS, WHOLE, MAP, FLAGS, SHAPE,
        )  # fmt: skip
    store_rows(head_of(dq, dq_strides, b, h), site.rows, sizes.rows, result, SHAPE)

"""The forward kernel: one program per block of queries of a head."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.maps import log_g, weights
from sparse_attn.kernels.triton.names import Block, Statistics
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
from sparse_attn.kernels.triton.solve import is_live, statistics, tile_at


@triton.jit
def pointwise_rows(
    site, keys, values, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):
    """out of a block of rows, with an online normaliser."""
    top = tl.full([SHAPE.block_m], float("-inf"), tl.float32)
    total = tl.full([SHAPE.block_m], 0.0, tl.float32)
    if FLAGS.sink:
        top = log_g(total + site.sink, theta, MAP)
        total += 1.0
    out = tl.full([SHAPE.block_m, SHAPE.block_d], 0.0, tl.float32)
    first, last = key_range(site, SHAPE, FLAGS)
    for start in range(first, last, SHAPE.block_n):
        columns = start + tl.arange(0, SHAPE.block_n)
        k = load_rows(keys, columns, site.n_keys, SHAPE)
        s, _ = scores_of(k, columns, site, FLAGS)
        outside = s == float("-inf")
        f = log_g(tl.where(outside, 0.0, s), theta, MAP)
        f = tl.where(outside, float("-inf"), f)
        new = tl.maximum(top, tl.max(f, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp(f - base[:, None])
        shrink = tl.exp(top - base)
        total = total * shrink + tl.sum(p, 1)
        if FLAGS.dropout:
            p = dropped(p, drop, columns, site)
        v = load_rows(values, columns, site.n_keys, SHAPE)
        out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=FLAGS.precision)
        top = new
    inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
    top = tl.where(top == float("-inf"), 0.0, top)
    zero = total * 0.0
    none = zero.to(tl.int32)
    return out * inverse[:, None], Statistics(top, inverse, zero, zero, zero, none, none)


@triton.jit
def solved_rows(
    site, keys, values, alive, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """out of a block of rows whose weights depend on statistics of the whole row."""
    kept = 0.0
    if SHAPE.short:
        columns = tl.arange(0, SHAPE.block_n)
        k = load_rows(keys, columns, site.n_keys, SHAPE)
        kept, _ = scores_of(k, columns, site, FLAGS)
    first, last = key_range(site, SHAPE, FLAGS)
    block = Block(site, keys, kept, first, last, alive)
    stats, slack = statistics(block, theta, MAP, FLAGS, SHAPE)
    total = tl.full([SHAPE.block_m], 0.0, tl.float32)
    out = tl.full([SHAPE.block_m, SHAPE.block_d], 0.0, tl.float32)
    tl.debug_barrier()  # wait for the live marks of the last pass
    for start in range(first, last, SHAPE.block_n):
        if is_live(alive, start, MAP, SHAPE):
            s, columns = tile_at(start, block, FLAGS, SHAPE)
            p = weights(s, stats, columns, theta, MAP)
            total += tl.sum(p, 1)
            if MAP.skip:
                left = tl.max((p != 0.0).to(tl.int32), 1)
                tl.store(alive + start // SHAPE.block_n, tl.max(left, 0).to(tl.int8))
            if FLAGS.dropout:
                p = dropped(p, drop, columns, site)
            v = load_rows(values, columns, site.n_keys, SHAPE)
            out += tl.dot(p.to(v.dtype), v, input_precision=FLAGS.precision)
    if FLAGS.sink:
        s, columns = sink_of(site, SHAPE)
        total += tl.sum(weights(s, stats, columns, theta, MAP), 1)
    if MAP.family == "threshold" or MAP.family == "truncated":
        inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
        out = out * inverse[:, None]
        c = inverse
    else:
        c = stats.c
    d = tl.where(stats.b == 0.0, slack, stats.d)
    return out, Statistics(stats.a, stats.b, c, d, stats.e, stats.low, stats.high)


@triton.jit
def attend(
    result, saved, indices, site, keys, values, row_ids, num_rows, alive, theta, drop,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """One block of rows: its output and its statistics."""
    inside = site.rows < site.n_rows
    if MAP.family == "pointwise":
        out, stats = pointwise_rows(site, keys, values, theta, drop, MAP, FLAGS, SHAPE)
    else:
        out, stats = solved_rows(site, keys, values, alive, theta, drop, MAP, FLAGS, SHAPE)
        tl.store(saved + 2 * num_rows + row_ids, stats.c, mask=inside)
        tl.store(saved + 3 * num_rows + row_ids, stats.d, mask=inside)
        tl.store(saved + 4 * num_rows + row_ids, stats.e, mask=inside)
        tl.store(indices + row_ids, stats.low, mask=inside)
        tl.store(indices + num_rows + row_ids, stats.high, mask=inside)
    tl.store(saved + row_ids, stats.a, mask=inside)
    tl.store(saved + num_rows + row_ids, stats.b, mask=inside)
    store_rows(result, site.rows, site.n_rows, out, SHAPE)


@triton.jit
def fwd_kernel(
    query, key, value, out, q_strides, k_strides, v_strides, o_strides,
    saved, indices, alive, alive_stride, theta, sink, lengths, seed, pairs, sizes, scaling, rate,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of queries, fastest, times batch x heads.

    scaling = (scale, softcap); pairs, sizes and the constants as in names.py. HALF is SHAPE with
    half as many keys, for heads with enough padding, or None.
    """
    blocks = tl.cdiv(sizes.rows, SHAPE.block_m)
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, h, h_key = place_of(head, sizes.heads, sizes.groups)
    site = site_of(
        query, q_strides, block, b, h, lengths, pairs, sizes, scaling, sink, FLAGS, SHAPE
    )  # fmt: skip
    keys, values = head_of(key, k_strides, b, h_key), head_of(value, v_strides, b, h_key)
    result = head_of(out, o_strides, b, h)
    row_ids = head.to(tl.int64) * sizes.rows + site.rows
    alive += (head.to(tl.int64) * blocks + block) * alive_stride
    drop = drop_of(seed, head, rate, FLAGS)
    theta_h = tl.load(theta + h)
    if HALF is None:
        attend(
            result, saved, indices, site, keys, values, row_ids, sizes.num_rows, alive, theta_h,
            drop, MAP, FLAGS, SHAPE,
        )  # fmt: skip
    elif site.n_keys <= HALF.block_n:
        attend(
            result, saved, indices, site, keys, values, row_ids, sizes.num_rows, alive, theta_h,
            drop, MAP, FLAGS, HALF,
        )  # fmt: skip
    else:
        attend(
            result, saved, indices, site, keys, values, row_ids, sizes.num_rows, alive, theta_h,
            drop, MAP, FLAGS, SHAPE,
        )  # fmt: skip

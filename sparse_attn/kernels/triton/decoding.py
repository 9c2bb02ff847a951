"""Inference with few queries and many keys: the keys are split over programs.

There are three kernels, because a row's statistics depend on all its scores: the scores, few for
few queries; their statistics; and weights times values, whose parts are then summed.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.maps import both_weights, nan_of, weights
from sparse_attn.kernels.triton.names import Block, Matrix, Span, Statistics
from sparse_attn.kernels.triton.passes import blank, larger, sweep
from sparse_attn.kernels.triton.pointwise import all_of, density, least_size, share_of, size_of
from sparse_attn.kernels.triton.saved import load_statistics, store_statistics
from sparse_attn.kernels.triton.scores import (
    head_of,
    keys_of,
    load_tile,
    place_of,
    scores_of,
    sink_of,
    site_at,
    site_of,
    stored_tile,
)
from sparse_attn.kernels.triton.solve import statistics


@triton.jit
def decode_scores_kernel(
    query, key, q_strides, k_strides, scores, splits, chunk, theta, sink, lengths, seed, pairs,
    sizes, scaling, dropping, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Store x of every score, (B, H, Q, K), -inf where masked. Grid: parts of keys times B x H."""
    split, head = tl.program_id(0) % splits, tl.program_id(0) // splits
    b, h, h_key = place_of(head, sizes.heads, sizes.groups)
    rows = tl.minimum(tl.arange(0, SHAPE.block_m), sizes.rows - 1)
    site = site_of(
        query, q_strides, rows, b, h, lengths, pairs, sizes, scaling, sink, FLAGS, SHAPE
    )  # fmt: skip
    keys = head_of(key, k_strides, b, h_key)
    places = scores + (head.to(tl.int64) * sizes.rows + rows)[:, None] * sizes.keys
    last = tl.minimum((split + 1) * chunk, tl.cdiv(sizes.keys, SHAPE.block_n))
    for tile in range(split * chunk, last):
        start = tile * SHAPE.block_n
        columns = start + tl.arange(0, SHAPE.block_n)
        k = load_tile(keys, start, site.n_keys, True, SHAPE)
        x, _ = scores_of(k, columns, site, True, FLAGS)
        tl.store(places + columns[None, :], x, mask=(columns < sizes.keys)[None, :])


@triton.jit
def sized(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `sweep` for a pointwise row's size."""
    theta, unit = given
    return (larger(state[0], size_of(x, theta, unit, MAP)),)


@triton.jit
def dense(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `sweep` for a pointwise row's sum."""
    size, theta, unit = given
    return (state[0] + density(x, size, all_of(MAP.kind), theta, unit, MAP),)


@triton.jit
def weighed(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `sweep` for a threshold or truncated row's sum."""
    solved, theta, unit = given
    p, _ = both_weights(x, solved, theta, unit, MAP)
    return (state[0] + p,)


@triton.jit
def decode_statistics_kernel(
    scores, saved, theta, sink, lengths, seed, pairs, sizes, scaling, dropping,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Store row statistics of a head like the forward kernel. Grid: B x H."""
    head = tl.program_id(0)
    b, h, _h_key = place_of(head, sizes.heads, sizes.groups)
    rows = tl.minimum(tl.arange(0, SHAPE.block_m), sizes.rows - 1)
    score = tl.load(sink + h) if FLAGS.sink else 0.0
    site = site_at(rows, rows, b, h, sizes.keys, 0, pairs, sizes, scaling, score, 0, 0, FLAGS)
    tiles = tl.cdiv(sizes.keys, SHAPE.block_n)
    places = Matrix(scores + head.to(tl.int64) * sizes.rows * sizes.keys, sizes.keys)
    span = Span(tiles * 0, tiles * 0, tiles, tiles)
    block = Block(site, places, (), span, scores, places)
    theta_h = tl.load(theta + h)
    zero = tl.full([SHAPE.block_m], 0.0, tl.float32)
    unit = site.unit
    if MAP.family == "pointwise":
        least = zero + least_size(theta_h, MAP)
        if FLAGS.sink:
            x, _ = sink_of(site, SHAPE)
            least = tl.maximum(least, tl.max(size_of(x, theta_h, unit, MAP), 1))
        found = (least[:, None] + blank(0.0, SHAPE),)
        found = sweep(sized, found, (theta_h, unit), block, False, MAP, FLAGS, SHAPE)
        size = tl.reduce(found[0], 1, larger)
        size = tl.where(size == float("-inf"), 0.0, size)
        given = (size[:, None], theta_h, unit)
        sums = sweep(dense, (blank(0.0, SHAPE),), given, block, False, MAP, FLAGS, SHAPE)
        total = tl.sum(sums[0], 1)
        if FLAGS.sink:
            x, _ = sink_of(site, SHAPE)
            total += tl.sum(density(x, size[:, None], all_of(MAP.kind), theta_h, unit, MAP), 1)
        size += nan_of(theta_h)
        none = zero.to(tl.int32)
        stats = Statistics(size, share_of(total, MAP), zero, zero, zero, none, none, zero)
    else:
        solved = statistics(block, theta_h, MAP, FLAGS, SHAPE)
        found = solved.stats
        f = found.f
        if MAP.family == "threshold" or MAP.family == "truncated":
            given = (solved, theta_h, unit)
            sums = sweep(weighed, (blank(0.0, SHAPE),), given, block, False, MAP, FLAGS, SHAPE)
            total = tl.sum(sums[0], 1)
            if FLAGS.sink:
                x, _ = sink_of(site, SHAPE)
                p, _ = both_weights(x, solved, theta_h, unit, MAP)
                total += tl.sum(p, 1)
            f += tl.log2(tl.where(total == 0.0, 1.0, total))
            if MAP.family == "threshold":
                f += tl.log2(found.b)
        none = zero.to(tl.int32)
        stats = Statistics(found.a, found.b, found.c, found.d, found.e, none, none, f)
    store_statistics(saved, head.to(tl.int64) * sizes.rows + rows, stats, MAP)


@triton.jit
def decode_values_kernel(
    scores, saved, value, v_strides, parts, splits, chunk, theta, sink, lengths, seed, pairs,
    sizes, scaling, dropping, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Store p v of each part of the keys, (splits, B, H, Q, D). Grid: as `decode_scores_kernel`."""
    split, head = tl.program_id(0) % splits, tl.program_id(0) // splits
    b, h, h_key = place_of(head, sizes.heads, sizes.groups)
    rows = tl.minimum(tl.arange(0, SHAPE.block_m), sizes.rows - 1)
    row_ids = head.to(tl.int64) * sizes.rows + rows
    stats = load_statistics(saved, row_ids, rows >= 0, MAP)
    theta_h = tl.load(theta + h)
    unit = scaling[0] if FLAGS.plain else 1.0
    values = head_of(value, v_strides, b, h_key)
    places = Matrix(scores + head.to(tl.int64) * sizes.rows * sizes.keys, sizes.keys)
    out = tl.full([SHAPE.block_m, SHAPE.block_d], 0.0, tl.float32)
    n_keys, _prefix = keys_of(lengths, b, pairs, sizes, FLAGS)  # does not read values of padding
    last = tl.minimum((split + 1) * chunk, tl.cdiv(n_keys, SHAPE.block_n))
    for tile in range(split * chunk, last):
        start = tile * SHAPE.block_n
        x = stored_tile(places, rows, start + tl.arange(0, SHAPE.block_n), sizes.keys)
        p = weights(x, stats, theta_h, unit, MAP)
        v = load_tile(values, start, n_keys, True, SHAPE)
        out = tl.dot(p.to(v.dtype), v, out, input_precision=FLAGS.precision)
    if MAP.family == "threshold" or MAP.family == "truncated":
        out += (stats.f - stats.f)[:, None]  # keeps a NaN row NaN
    d = tl.arange(0, SHAPE.block_d)
    total_rows = (tl.num_programs(0) // splits).to(tl.int64) * sizes.rows
    places = parts + (split * total_rows + row_ids)[:, None] * SHAPE.dim + d[None, :]
    tl.store(places, out, mask=(d < SHAPE.dim)[None, :])

"""Second backward kernel: one program per tile of keys of a key head."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.backward import scores_gradient, tile_of, weights_gradient
from sparse_attn.kernels.triton.dropout import drop_of
from sparse_attn.kernels.triton.saved import load_gradient, load_statistics
from sparse_attn.kernels.triton.scores import (
    edge_at,
    edges_of,
    gradient_dot,
    has_row_edges,
    head_of,
    keys_of,
    load_rows,
    place_of,
    row_span,
    sequence_of,
    site_at,
    store_rows,
)


@triton.jit
def listed_rows(marks, rows, span):
    """List the inner blocks of rows whose tile is marked, and return their number."""
    count = span.first * 0
    for start in range(span.inner, span.outer, 1024):
        places = start + tl.arange(0, 1024)
        live = tl.load(marks + places, mask=places < span.outer, other=0).to(tl.int32)
        last = tl.cumsum(live, 0)
        tl.store(rows + count + last - 1, places.to(rows.dtype.element_ty), mask=live != 0)
        count += tl.sum(live, 0)
    tl.debug_barrier()  # before the list is read
    return count


@triton.jit
def with_rows(
    state, number, k, v, columns, query, grad, saved, row_gradients, head, b, h, n_keys,
    begin, end, pairs, sizes, scaling, theta, drop, EDGE: tl.constexpr, MAP: tl.constexpr,
    FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Add a block of rows to dk and dv of a tile of keys."""
    dk, dv = state
    rows = number * SHAPE.block_m + tl.arange(0, SHAPE.block_m)
    inside = rows < sizes.rows
    row_ids = head.to(tl.int64) * sizes.rows + rows
    q = load_rows(query, rows, sizes.rows, SHAPE)
    do = load_rows(grad, rows, sizes.rows, SHAPE)
    site = site_at(q, rows, b, h, n_keys, n_keys, pairs, sizes, scaling, 0.0, begin, end, FLAGS)
    stats = load_statistics(saved, row_ids, inside, MAP)
    gradient = load_gradient(row_gradients, row_ids, inside, MAP)
    g = tl.dot(do, tl.trans(v), input_precision=FLAGS.precision)
    tile = tile_of(k, columns, stats, site, theta, drop, EDGE, MAP, FLAGS)
    dv = tl.dot(tl.trans(tile.used), do, dv, input_precision=FLAGS.precision)
    g = weights_gradient(g, tile, site, drop, MAP, FLAGS)
    ds = scores_gradient(tile, g, stats, gradient, theta, site.unit, EDGE, MAP, FLAGS)
    return gradient_dot(tl.trans(ds), q, dk, FLAGS, SHAPE), dv


@triton.jit
def bwd_dkdv_kernel(
    query, key, value, grad, dk, dv,
    q_strides, k_strides, v_strides, g_strides, dk_strides, dv_strides,
    saved, row_gradients, marks, lists, theta, sink, lengths, seed, pairs, sizes, scaling,
    dropping, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of keys, fastest, times batch x key heads; query heads in turn.

    Masked keys are computed like others, and their gradients dropped at the end.
    """
    columns = tl.cdiv(sizes.keys, SHAPE.block_n)
    number = tl.program_id(0) % columns
    head_key = tl.program_id(0) // columns
    b, h_key, _group = place_of(head_key, sizes.heads // sizes.groups, 1)
    n_keys, _prefix = keys_of(lengths, b, pairs, sizes, FLAGS)
    start = number * SHAPE.block_n
    places = start + tl.arange(0, SHAPE.block_n)
    k = load_rows(head_of(key, k_strides, b, h_key), places, n_keys, SHAPE)
    v = load_rows(head_of(value, v_strides, b, h_key), places, n_keys, SHAPE)
    begin, end = 0, 0
    if FLAGS.packed:
        begin, end = sequence_of(places, lengths, sizes.boundaries, sizes.rows)
        begin, end = begin[None, :], end[None, :]
    span = row_span(start, n_keys, sizes.rows, begin, end, SHAPE, FLAGS)
    blocks = tl.cdiv(sizes.rows, SHAPE.block_m)
    nothing = tl.full([SHAPE.block_n, SHAPE.block_d], 0.0, tl.float32)
    state = (nothing, nothing)
    for member in range(0, sizes.groups):
        h = h_key * sizes.groups + member
        head = (b * sizes.heads + h).to(tl.int32)
        theta_h = tl.load(theta + h)
        drop = drop_of(seed, head, dropping, FLAGS)
        q, do = head_of(query, q_strides, b, h), head_of(grad, g_strides, b, h)
        place = (head.to(tl.int64) * columns + number) * blocks
        count = span.outer - span.inner
        if MAP.skip:
            count = listed_rows(marks + place, lists + place, span)
        for i in range(0, count):
            block = tl.load(lists + place + i).to(tl.int32) if MAP.skip else span.inner + i
            state = with_rows(
                state, block, k, v, places, q, do, saved, row_gradients, head, b, h,
                n_keys, begin, end, pairs, sizes, scaling, theta_h, drop, FLAGS.ragged, MAP,
                FLAGS, SHAPE,
            )  # fmt: skip
        if has_row_edges(FLAGS.ragged, FLAGS.causal, FLAGS.window, FLAGS.packed):
            for i in range(0, edges_of(span)):
                state = with_rows(
                    state, edge_at(i, span), k, v, places, q, do, saved, row_gradients, head,
                    b, h, n_keys, begin, end, pairs, sizes, scaling, theta_h, drop, True, MAP,
                    FLAGS, SHAPE,
                )  # fmt: skip
    to_keys, to_values = state
    valid = places < n_keys
    if FLAGS.padding:
        mask = pairs.mask + b * pairs.mask_b + places.to(tl.int64) * pairs.mask_n
        valid = valid & (tl.load(mask, mask=valid, other=0) != 0)
    to_keys = tl.where(valid[:, None], to_keys * scaling[0], 0.0)
    if FLAGS.dropout:
        to_values = to_values * dropping[1]
    to_values = tl.where(valid[:, None], to_values, 0.0)
    store_rows(head_of(dk, dk_strides, b, h_key), places, sizes.keys, to_keys, SHAPE)
    store_rows(head_of(dv, dv_strides, b, h_key), places, sizes.keys, to_values, SHAPE)

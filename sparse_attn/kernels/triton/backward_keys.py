"""The second backward kernel: one program per block of keys of a key head."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.backward import load_statistics, scores_gradient, tile_of
from sparse_attn.kernels.triton.names import Gradient
from sparse_attn.kernels.triton.scores import (
    drop_of,
    head_of,
    keys_of,
    load_rows,
    place_of,
    row_range,
    site_at,
    store_rows,
)
from sparse_attn.kernels.triton.solve import is_live


@triton.jit
def bwd_dkdv_kernel(
    query, key, value, grad, dk, dv,
    q_strides, k_strides, v_strides, g_strides, dk_strides, dv_strides,
    saved, indices, row_gradients, alive, alive_stride, theta, sink, lengths, seed, pairs,
    sizes, scaling, rate,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of keys, fastest, times batch x key heads; query heads in turn."""
    key_blocks = tl.cdiv(sizes.keys, SHAPE.block_n)
    block = tl.program_id(0) % key_blocks
    head_key = tl.program_id(0) // key_blocks
    b, h_key, _group = place_of(head_key, sizes.heads // sizes.groups, 1)
    n_keys = keys_of(lengths, b, pairs, sizes, FLAGS)
    columns = block * SHAPE.block_n + tl.arange(0, SHAPE.block_n)
    k = load_rows(head_of(key, k_strides, b, h_key), columns, n_keys, SHAPE)
    v = load_rows(head_of(value, v_strides, b, h_key), columns, n_keys, SHAPE)
    first, last = row_range(block * SHAPE.block_n, sizes.rows, SHAPE, FLAGS)
    last = tl.where(block * SHAPE.block_n < n_keys, last, 0)
    blocks = tl.cdiv(sizes.rows, SHAPE.block_m)
    to_keys = tl.full([SHAPE.block_n, SHAPE.block_d], 0.0, tl.float32)
    to_values = tl.full([SHAPE.block_n, SHAPE.block_d], 0.0, tl.float32)
    for member in range(0, sizes.groups):
        h = h_key * sizes.groups + member
        head = (b * sizes.heads + h).to(tl.int32)
        theta_h = tl.load(theta + h)
        drop = drop_of(seed, head, rate, FLAGS)
        for start in range(first, last, SHAPE.block_m):
            place = (head.to(tl.int64) * blocks + start // SHAPE.block_m) * alive_stride
            if is_live(alive + place + block, 0, MAP, SHAPE):
                rows = start + tl.arange(0, SHAPE.block_m)
                inside = rows < sizes.rows
                row_ids = head.to(tl.int64) * sizes.rows + rows
                q = load_rows(head_of(query, q_strides, b, h), rows, sizes.rows, SHAPE)
                do = load_rows(head_of(grad, g_strides, b, h), rows, sizes.rows, SHAPE)
                site = site_at(q, rows, b, h, n_keys, pairs, sizes, scaling, 0.0)
                stats = load_statistics(saved, indices, row_ids, sizes.num_rows, inside, MAP)
                gamma = tl.load(row_gradients + row_ids, mask=inside, other=0.0)
                extra = gamma
                if MAP.family != "pointwise":
                    places = row_gradients + 2 * sizes.num_rows + row_ids
                    extra = tl.load(places, mask=inside, other=0.0)
                tile = tile_of(k, v, columns, do, stats, site, theta_h, drop, MAP, FLAGS)
                ds = scores_gradient(tile, stats, Gradient(gamma, extra), MAP).to(q.dtype)
                used = tile.used.to(do.dtype)
                to_values += tl.dot(tl.trans(used), do, input_precision=FLAGS.precision)
                to_keys += tl.dot(tl.trans(ds), q, input_precision=FLAGS.precision)
    store_rows(head_of(dk, dk_strides, b, h_key), columns, sizes.keys, to_keys, SHAPE)
    store_rows(head_of(dv, dv_strides, b, h_key), columns, sizes.keys, to_values, SHAPE)

"""The forward kernel: one program for a block of queries of one head."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.maps import log_g, weights
from sparse_attn.kernels.triton.scores import (
    dropped,
    key_range,
    load_rows,
    scores_of,
    store_rows,
)
from sparse_attn.kernels.triton.solve import is_live, statistics, tile_at


@triton.jit
def place_of(head, heads, groups):
    """Batch entry, query head and key head of a flat head index, in 64 bits."""
    b = (head // heads).to(tl.int64)
    h = (head % heads).to(tl.int64)
    return b, h, h // groups


@triton.jit
def pairs_of(masks, b, h):
    """Mask and bias of one head: (mask, strides, bias, strides)."""
    mask, mask_strides, bias, bias_strides = masks
    mask += b * mask_strides[0] + h * mask_strides[1]
    bias += b * bias_strides[0] + h * bias_strides[1]
    return mask, mask_strides[2], mask_strides[3], bias, bias_strides[2], bias_strides[3]


@triton.jit
def keys_of(lengths, b, n_keys, pairs, FLAGS: tl.constexpr, HAS_LENGTHS: tl.constexpr):
    """Number of keys of a batch entry up to its padding: given, or the last that the mask allows."""
    PADDING: tl.constexpr = FLAGS[6]
    if HAS_LENGTHS:
        n_keys = tl.minimum(n_keys, tl.maximum(tl.load(lengths + b).to(tl.int32), 0))
    if PADDING:
        last = n_keys * 0
        for start in range(0, n_keys, 1024):
            columns = start + tl.arange(0, 1024)
            offsets = columns.to(tl.int64) * pairs[2]
            allowed = tl.load(pairs[0] + offsets, mask=columns < n_keys, other=0)
            last = tl.maximum(last, tl.max(tl.where(allowed != 0, columns + 1, 0), 0))
        n_keys = last
    return n_keys


@triton.jit
def pointwise_rows(
    values, keys, site, bounds, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """out of a block of rows, with the normaliser kept up to date tile by tile."""
    v_pointer, v_stride = values
    seed, head, rate = drop
    rows, n_keys, all_keys = site[1], site[3], site[4]
    top = tl.full([SHAPE[0]], float("-inf"), tl.float32)
    total = tl.full([SHAPE[0]], 0.0, tl.float32)
    out = tl.full([SHAPE[0], SHAPE[3]], 0.0, tl.float32)
    for start in range(bounds[0], bounds[1], SHAPE[1]):
        columns = start + tl.arange(0, SHAPE[1])
        k = load_rows(keys[0], keys[1], columns, n_keys, SHAPE[2], SHAPE[3])
        s, _ = scores_of(k, columns, site, FLAGS)
        outside = s == float("-inf")
        f = log_g(tl.where(outside, 0.0, s), theta, MAP[1])
        f = tl.where(outside, float("-inf"), f)
        new = tl.maximum(top, tl.max(f, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp(f - base[:, None])
        shrink = tl.exp(top - base)
        total = total * shrink + tl.sum(p, 1)
        if DROPOUT:
            p = dropped(p, seed, head, rows, columns, all_keys, rate)
        v = load_rows(v_pointer, v_stride, columns, n_keys, SHAPE[2], SHAPE[3])
        out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=FLAGS[5])
        top = new
    inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
    top = tl.where(top == float("-inf"), 0.0, top)
    zero = total * 0.0
    return out * inverse[:, None], (top, inverse, zero, zero, zero)


@triton.jit
def solved_rows(
    values, keys, site, bounds, alive, theta, drop, SKIP: tl.constexpr, MAP: tl.constexpr,
    FLAGS: tl.constexpr, SHAPE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """out of a block of rows whose weights need statistics of the whole row first."""
    v_pointer, v_stride = values
    seed, head, rate = drop
    rows, n_keys, all_keys = site[1], site[3], site[4]
    kept = 0.0
    if SHAPE[4]:
        columns = tl.arange(0, SHAPE[1])
        k = load_rows(keys[0], keys[1], columns, n_keys, SHAPE[2], SHAPE[3])
        kept, _ = scores_of(k, columns, site, FLAGS)
    stats, low, high = statistics(
        kept, keys, site, bounds, alive, theta, SKIP, MAP[0], MAP[1], FLAGS, SHAPE
    )
    total = tl.full([SHAPE[0]], 0.0, tl.float32)
    out = tl.full([SHAPE[0], SHAPE[3]], 0.0, tl.float32)
    tl.debug_barrier()
    for start in range(bounds[0], bounds[1], SHAPE[1]):
        if is_live(alive, start, SKIP, SHAPE):
            s, columns = tile_at(start, kept, keys, site, FLAGS, SHAPE)
            p = weights(s, stats, low, columns, theta, MAP[0], MAP[1])
            total += tl.sum(p, 1)
            if SKIP:
                left = tl.max((p > 0.0).to(tl.int32), 1)
                tl.store(alive + start // SHAPE[1], tl.max(left, 0).to(tl.int8))
            if DROPOUT:
                p = dropped(p, seed, head, rows, columns, all_keys, rate)
            v = load_rows(v_pointer, v_stride, columns, n_keys, SHAPE[2], SHAPE[3])
            out += tl.dot(p.to(v.dtype), v, input_precision=FLAGS[5])
    a, b, c, d, e = stats
    if MAP[0] == "threshold":
        inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
        out = out * inverse[:, None]
        c = inverse
    return out, (a, b, c, d, e), low, high


@triton.jit
def attend(
    out, saved, inputs, site, head, alive, theta, drop, SKIP: tl.constexpr, MAP: tl.constexpr,
    FLAGS: tl.constexpr, SHAPE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """One block of rows, its output and its statistics."""
    o_pointer, o_stride = out
    stats_pointer, indices, n_total = saved
    values, keys = inputs
    rows, n_rows, n_keys = site[1], site[2], site[3]
    if SHAPE[4]:
        bounds = (0, SHAPE[1])
    else:
        first_row = tl.min(rows, 0)
        bounds = key_range(first_row, n_keys, SHAPE, FLAGS)
    row = head.to(tl.int64) * n_rows + rows
    if MAP[0] == "pointwise":
        o, stats = pointwise_rows(
            values, keys, site, bounds, theta, drop, MAP, FLAGS, SHAPE, DROPOUT
        )
    else:
        o, stats, low, high = solved_rows(
            values, keys, site, bounds, alive, theta, drop, SKIP, MAP, FLAGS, SHAPE, DROPOUT
        )
        tl.store(stats_pointer + 2 * n_total + row, stats[2], mask=rows < n_rows)
        tl.store(stats_pointer + 3 * n_total + row, stats[3], mask=rows < n_rows)
        tl.store(stats_pointer + 4 * n_total + row, stats[4], mask=rows < n_rows)
        tl.store(indices + row, low, mask=rows < n_rows)
        tl.store(indices + n_total + row, high, mask=rows < n_rows)
    tl.store(stats_pointer + row, stats[0], mask=rows < n_rows)
    tl.store(stats_pointer + n_total + row, stats[1], mask=rows < n_rows)
    store_rows(o_pointer, o_stride, rows, n_rows, o, SHAPE[2], SHAPE[3])


@triton.jit
def forward_kernel(
    query, key, value, out, q_strides, k_strides, v_strides, o_strides,
    stats, indices, alive, alive_stride, theta, lengths, seed, masks, sizes, scaling, rate,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr, HALF: tl.constexpr,
    SKIP: tl.constexpr, HAS_LENGTHS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of queries, batch x heads).

    masks = (mask, strides, bias, strides), sizes = (heads, groups, queries, keys, batch x heads x
    queries), MAP = (family, kind), FLAGS as in `scores_of`, SHAPE = (BLOCK_M, BLOCK_N, D, BLOCK_D,
    SHORT, HALVED). HALF is SHAPE with half as many keys, for heads whose padding leaves no more.
    """
    heads, groups, n_rows, all_keys, n_total = sizes
    block, head = tl.program_id(0), tl.program_id(1)
    b, h, h_key = place_of(head, heads, groups)
    pairs = pairs_of(masks, b, h)
    n_keys = keys_of(lengths, b, all_keys, pairs, FLAGS, HAS_LENGTHS)
    rows = block * SHAPE[0] + tl.arange(0, SHAPE[0])
    q = load_rows(
        query + b * q_strides[0] + h * q_strides[1], q_strides[2], rows, n_rows, SHAPE[2], SHAPE[3]
    )
    site = (q, rows, n_rows, n_keys, all_keys, scaling, pairs)
    keys = (key + b * k_strides[0] + h_key * k_strides[1], k_strides[2])
    values = (value + b * v_strides[0] + h_key * v_strides[1], v_strides[2])
    result = (out + b * o_strides[0] + h * o_strides[1], o_strides[2])
    alive += (head.to(tl.int64) * tl.num_programs(0) + block) * alive_stride
    drop = (0, head, rate)
    if DROPOUT:
        drop = (tl.load(seed), head, rate)
    place = (stats, indices, n_total)
    theta_h = tl.load(theta + h)
    if HALF is None:
        attend(
            result, place, (values, keys), site, head, alive, theta_h, drop, SKIP, MAP, FLAGS,
            SHAPE, DROPOUT,
        )  # fmt: skip
    elif n_keys <= HALF[1]:
        attend(
            result, place, (values, keys), site, head, alive, theta_h, drop, SKIP, MAP, FLAGS,
            HALF, DROPOUT,
        )  # fmt: skip
    else:
        attend(
            result, place, (values, keys), site, head, alive, theta_h, drop, SKIP, MAP, FLAGS,
            SHAPE, DROPOUT,
        )  # fmt: skip

"""Tiles of scores: loading, masking, dropout."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.names import Drop, Matrix, Site

FAR = tl.constexpr(2147483647)  # the column of none
SINK = tl.constexpr(2147483646)  # the column of the sink, after all keys


@triton.jit
def place_of(head, heads, groups):
    """Batch entry, query head and key head of a flat head index, in 64 bits."""
    b = (head // heads).to(tl.int64)
    h = (head % heads).to(tl.int64)
    return b, h, h // groups


@triton.jit
def head_of(pointer, strides, b, h):
    """One head of a (batch, heads, length, dim) tensor."""
    return Matrix(pointer + b * strides[0] + h * strides[1], strides[2])


@triton.jit
def load_rows(matrix, rows, n, SHAPE: tl.constexpr):
    """Rows of a (length, dim) matrix, 0 from row n on, [rows, BLOCK_D]."""
    d = tl.arange(0, SHAPE.block_d)
    inside = (rows < n)[:, None] & (d < SHAPE.dim)[None, :]
    places = matrix.pointer + rows.to(tl.int64)[:, None] * matrix.stride + d[None, :]
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def store_rows(matrix, rows, n, values, SHAPE: tl.constexpr):
    d = tl.arange(0, SHAPE.block_d)
    inside = (rows < n)[:, None] & (d < SHAPE.dim)[None, :]
    places = matrix.pointer + rows.to(tl.int64)[:, None] * matrix.stride + d[None, :]
    tl.store(places, values.to(matrix.pointer.dtype.element_ty), mask=inside)


@triton.jit
def load_pairs(pointer, stride_m, stride_n, rows, columns, n_rows, n_keys):
    """A tile [rows, columns] of a mask or bias, with 64-bit offsets."""
    offsets = rows.to(tl.int64)[:, None] * stride_m + columns.to(tl.int64)[None, :] * stride_n
    inside = (rows < n_rows)[:, None] & (columns < n_keys)[None, :]
    return tl.load(pointer + offsets, mask=inside, other=0)


@triton.jit
def tanh(x):
    """tanh, by its series where 2 sigmoid(2x) - 1 cancels."""
    square = x * x
    near = x * (1.0 - square * (1.0 / 3 - square * (2.0 / 15 - square * (17.0 / 315))))
    return tl.where(tl.abs(x) < 0.1, near, 2.0 * tl.sigmoid(2.0 * x) - 1.0)


@triton.jit
def scores_of(k, columns, site, FLAGS: tl.constexpr):
    """Scores [BM, BN] in float32, -inf where masked, and their slope by q k^T."""
    rows, n_keys = site.rows, site.n_keys
    s = tl.dot(site.q, tl.trans(k), input_precision=FLAGS.precision) * site.scale
    slope = site.scale
    if FLAGS.softcap:
        bent = tanh(s / site.softcap)
        s = site.softcap * bent
        slope = site.scale * (1.0 - bent * bent)
    if FLAGS.bias:
        bias = load_pairs(site.bias, site.bias_m, site.bias_n, rows, columns, site.n_rows, n_keys)
        s += bias.to(tl.float32)
    # rows past the end would have support everywhere and keep every tile alive
    valid = (columns < n_keys)[None, :] & (rows < site.n_rows)[:, None]
    if FLAGS.causal:
        valid = valid & (columns[None, :] <= rows[:, None])
    if FLAGS.window > 0:
        valid = valid & (tl.abs(rows[:, None] - columns[None, :]) < FLAGS.window)
    if FLAGS.padding:
        allowed = tl.load(
            site.mask + columns.to(tl.int64) * site.mask_n, mask=columns < n_keys, other=0
        )
        valid = valid & (allowed != 0)[None, :]
    elif FLAGS.mask:
        allowed = load_pairs(
            site.mask, site.mask_m, site.mask_n, rows, columns, site.n_rows, n_keys
        )
        valid = valid & (allowed != 0)
    return tl.where(valid, s, float("-inf")), slope


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
def sink_of(site, SHAPE: tl.constexpr):
    """Scores [BM, 1] of the virtual key, and its column."""
    s = tl.full([SHAPE.block_m, 1], 0.0, tl.float32) + site.sink
    return s, tl.full([1], SINK, tl.int32)


@triton.jit
def first_of(hit, columns):
    """First key at which a row of `hit` is true, FAR if none."""
    return tl.min(tl.where(hit, columns[None, :], FAR), 1)


@triton.jit
def site_of(
    query, strides, block, b, h, lengths, pairs, sizes, scaling, sink, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head."""
    rows = block * SHAPE.block_m + tl.arange(0, SHAPE.block_m)
    q = load_rows(head_of(query, strides, b, h), rows, sizes.rows, SHAPE)
    n_keys = keys_of(lengths, b, pairs, sizes, FLAGS)
    score = tl.load(sink + h) if FLAGS.sink else 0.0
    return site_at(q, rows, b, h, n_keys, pairs, sizes, scaling, score)


@triton.jit
def site_at(q, rows, b, h, n_keys, pairs, sizes, scaling, sink):
    mask = pairs.mask + b * pairs.mask_b + h * pairs.mask_h
    bias = pairs.bias + b * pairs.bias_b + h * pairs.bias_h
    return Site(
        q, rows, sizes.rows, n_keys, sizes.keys, scaling[0], scaling[1],
        mask, pairs.mask_m, pairs.mask_n, bias, pairs.bias_m, pairs.bias_n, sink,
    )  # fmt: skip


@triton.jit
def keys_of(lengths, b, pairs, sizes, FLAGS: tl.constexpr):
    """Number of keys of a batch entry before its padding: given, or the last the mask allows."""
    n_keys = sizes.keys
    if FLAGS.lengths:
        n_keys = tl.minimum(n_keys, tl.maximum(tl.load(lengths + b).to(tl.int32), 0))
    if FLAGS.padding:
        mask = pairs.mask + b * pairs.mask_b
        last = n_keys * 0
        for start in range(0, n_keys, 1024):
            columns = start + tl.arange(0, 1024)
            places = mask + columns.to(tl.int64) * pairs.mask_n
            allowed = tl.load(places, mask=columns < n_keys, other=0)
            last = tl.maximum(last, tl.max(tl.where(allowed != 0, columns + 1, 0), 0))
        n_keys = last
    return n_keys


@triton.jit
def key_range(site, SHAPE: tl.constexpr, FLAGS: tl.constexpr):
    """First and last key that a block of rows may attend to; the first a multiple of BLOCK_N."""
    if SHAPE.short:
        first = 0
        last = SHAPE.block_n
    else:
        first_row = tl.min(site.rows, 0)
        first = first_row * 0
        last = site.n_keys
        if FLAGS.causal:
            last = tl.minimum(last, first_row + SHAPE.block_m)
        if FLAGS.window > 0:
            last = tl.minimum(last, first_row + SHAPE.block_m + FLAGS.window - 1)
            first = tl.maximum(first_row - FLAGS.window + 1, 0) // SHAPE.block_n * SHAPE.block_n
    return first, last


@triton.jit
def row_range(first_key, n_rows, SHAPE: tl.constexpr, FLAGS: tl.constexpr):
    """First and last row that may attend to a block of keys; the first a multiple of BLOCK_M."""
    first = first_key * 0
    last = n_rows
    if FLAGS.window > 0:
        first = tl.maximum(first_key - FLAGS.window + 1, 0)
        last = tl.minimum(last, first_key + SHAPE.block_n + FLAGS.window - 1)
    if FLAGS.causal:
        first = tl.maximum(first, first_key)
    return first // SHAPE.block_m * SHAPE.block_m, last


@triton.jit
def mixed(x):
    """A bijection of 32 bits under which neighbours look independent (lowbias32, C. Wellons)."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def dropped(x, drop, columns, site):
    """x with a share `rate` of its entries 0 and the rest scaled by 1 / (1 - rate).

    The choice depends only on seed, head, row and column, so that all kernels agree.
    """
    head = drop.head.to(tl.uint32)
    first = mixed(drop.seed.to(tl.uint32) ^ mixed(head))
    second = mixed((drop.seed >> 32).to(tl.uint32) + head)
    row = mixed(site.rows.to(tl.uint32) + first)
    bits = mixed(mixed(row[:, None] ^ columns.to(tl.uint32)[None, :]) + second)
    keep = (bits >> 8).to(tl.float32) * 5.9604644775390625e-08 >= drop.rate  # 2^-24
    return tl.where(keep, x / (1.0 - drop.rate), 0.0)


@triton.jit
def drop_of(seed, head, rate, FLAGS: tl.constexpr):
    value = tl.load(seed) if FLAGS.dropout else head.to(tl.int64)
    return Drop(value, head, rate)

"""Tiles of scores: loading, masking, dropout."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.maps import tanh


@triton.jit
def load_rows(pointer, stride, rows, n, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows of a (length, D) matrix, 0 beyond its end, [rows, BLOCK_D]."""
    d = tl.arange(0, BLOCK_D)
    inside = (rows < n)[:, None] & (d < D)[None, :]
    return tl.load(pointer + rows[:, None] * stride + d[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(pointer, stride, rows, n, values, D: tl.constexpr, BLOCK_D: tl.constexpr):
    d = tl.arange(0, BLOCK_D)
    inside = (rows < n)[:, None] & (d < D)[None, :]
    values = values.to(pointer.dtype.element_ty)
    tl.store(pointer + rows[:, None] * stride + d[None, :], values, mask=inside)


@triton.jit
def load_pairs(pointer, stride_m, stride_n, rows, columns, n_rows, n_keys):
    """A tile of a mask or bias (queries, keys) that may be larger than 2^31, [rows, columns]."""
    offsets = rows.to(tl.int64)[:, None] * stride_m + columns.to(tl.int64)[None, :] * stride_n
    inside = (rows < n_rows)[:, None] & (columns < n_keys)[None, :]
    return tl.load(pointer + offsets, mask=inside, other=0)


@triton.jit
def scores_of(k, columns, site, FLAGS: tl.constexpr):
    """Scores [BM, BN] in float32, -inf where masked, and their slope by q k^T."""
    q, rows, n_rows, n_keys, _, scaling, pairs = site
    scale, softcap = scaling
    mask, mask_m, mask_n, bias, bias_m, bias_n = pairs
    HAS_MASK: tl.constexpr = FLAGS[0]
    HAS_BIAS: tl.constexpr = FLAGS[1]
    SOFTCAP: tl.constexpr = FLAGS[2]
    CAUSAL: tl.constexpr = FLAGS[3]
    WINDOW: tl.constexpr = FLAGS[4]
    PRECISION: tl.constexpr = FLAGS[5]
    PADDING: tl.constexpr = FLAGS[6]
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    slope = scale
    if SOFTCAP:
        bent = tanh(s / softcap)
        s = softcap * bent
        slope = scale * (1.0 - bent * bent)
    if HAS_BIAS:
        s += load_pairs(bias, bias_m, bias_n, rows, columns, n_rows, n_keys).to(tl.float32)
    valid = (columns < n_keys)[None, :]
    if CAUSAL:
        valid = valid & (columns[None, :] <= rows[:, None])
    if WINDOW > 0:
        valid = valid & (tl.abs(rows[:, None] - columns[None, :]) < WINDOW)
    if PADDING:
        offsets = columns.to(tl.int64) * mask_n
        allowed = tl.load(mask + offsets, mask=columns < n_keys, other=0)
        valid = valid & (allowed != 0)[None, :]
    elif HAS_MASK:
        allowed = load_pairs(mask, mask_m, mask_n, rows, columns, n_rows, n_keys)
        valid = valid & (allowed != 0)
    return tl.where(valid, s, float("-inf")), slope


@triton.jit
def key_range(first_row, n_keys, SHAPE: tl.constexpr, FLAGS: tl.constexpr):
    """First and last key that a block of rows may attend to; the first a multiple of BLOCK_N."""
    BLOCK_M: tl.constexpr = SHAPE[0]
    BLOCK_N: tl.constexpr = SHAPE[1]
    CAUSAL: tl.constexpr = FLAGS[3]
    WINDOW: tl.constexpr = FLAGS[4]
    first = first_row * 0
    last = n_keys
    if CAUSAL:
        last = tl.minimum(last, first_row + BLOCK_M)
    if WINDOW > 0:
        last = tl.minimum(last, first_row + BLOCK_M + WINDOW - 1)
        first = tl.maximum(first_row - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    return first, last


@triton.jit
def row_range(first_key, n_rows, SHAPE: tl.constexpr, FLAGS: tl.constexpr):
    """First and last row that may attend to a block of keys; the first a multiple of BLOCK_M."""
    BLOCK_M: tl.constexpr = SHAPE[0]
    BLOCK_N: tl.constexpr = SHAPE[1]
    CAUSAL: tl.constexpr = FLAGS[3]
    WINDOW: tl.constexpr = FLAGS[4]
    first = first_key * 0
    last = n_rows
    if WINDOW > 0:
        first = tl.maximum(first_key - WINDOW + 1, 0)
        last = tl.minimum(last, first_key + BLOCK_N + WINDOW - 1)
    if CAUSAL:
        first = tl.maximum(first, first_key)
    return first // BLOCK_M * BLOCK_M, last


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
def dropped(x, seed, head, rows, columns, n_keys, rate):
    """x with a share `rate` of its entries 0 and the rest scaled by 1 / (1 - rate).

    The choice hangs on seed, head, row and column alone, so that every kernel makes the same one.
    """
    first = mixed(seed.to(tl.uint32) ^ mixed(head.to(tl.uint32)))
    second = mixed((seed >> 32).to(tl.uint32) + head.to(tl.uint32))
    counter = (rows[:, None] * n_keys + columns[None, :]).to(tl.uint32)
    bits = mixed(mixed(counter ^ first) + second)
    keep = (bits >> 8).to(tl.float32) * 5.9604644775390625e-08 >= rate  # 2^-24
    return tl.where(keep, x / (1.0 - rate), 0.0)

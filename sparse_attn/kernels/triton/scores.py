"""Tiles of scores: positions, loading, masking."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.names import Matrix, Site, Span

FAR = tl.constexpr(2147483647)  # column that stands for none
SINK = tl.constexpr(2147483646)  # column of the sink, after all keys
LEAST_SIDE = tl.constexpr(16)  # least side of a product


@triton.jit
def place_of(head, heads, groups):
    """Batch entry, query head and key head of a flat head index, in 64 bits."""
    b = (head // heads).to(tl.int64)
    h = (head % heads).to(tl.int64)
    return b, h, h // groups


@triton.jit
def head_of(pointer, strides, b, h):
    """Return one head of a (batch, heads, length, dim) tensor."""
    return Matrix(pointer + b * strides[0] + h * strides[1], strides[2])


@triton.jit
def places_of(matrix, rows, n, SHAPE: tl.constexpr):
    """Return pointers to rows of a (length, dim) matrix, and their mask, [rows, BLOCK_D]."""
    d = tl.arange(0, SHAPE.block_d)
    inside = (rows < n)[:, None]
    if SHAPE.dim != SHAPE.block_d:
        inside = inside & (d < SHAPE.dim)[None, :]
    return matrix.pointer + rows.to(tl.int64)[:, None] * matrix.stride + d[None, :], inside


@triton.jit
def load_rows(matrix, rows, n, SHAPE: tl.constexpr):
    """Load rows of a (length, dim) matrix, 0 from row n on."""
    places, inside = places_of(matrix, rows, n, SHAPE)
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def load_tile(matrix, start, n, EDGE: tl.constexpr, SHAPE: tl.constexpr):
    """Load rows of a (length, dim) matrix from `start` on; all are below n except in edge tiles."""
    rows = start + tl.arange(0, SHAPE.block_n)
    places, inside = places_of(matrix, rows, n, SHAPE)
    if EDGE:
        return tl.load(places, mask=inside, other=0.0)
    elif SHAPE.dim != SHAPE.block_d:
        return tl.load(places, mask=tl.arange(0, SHAPE.block_d)[None, :] < SHAPE.dim, other=0.0)
    else:
        return tl.load(places)


@triton.jit
def gradient_dot(ds, other, sums, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """sums + ds other, with ds rounded to the dtype of `other`, except for small head dims.

    If a row's scores are nearly equal, ds is as large as 1 / t and cancels along the query, which
    matters most for a head of one number. Products of such heads are padded anyway, so exactness is
    free.
    """
    if SHAPE.dim < LEAST_SIDE:
        return tl.dot(ds, other.to(tl.float32), sums, input_precision="ieee")
    else:
        return tl.dot(ds.to(other.dtype), other, sums, input_precision=FLAGS.precision)


@triton.jit
def store_rows(matrix, rows, n, values, SHAPE: tl.constexpr):
    places, inside = places_of(matrix, rows, n, SHAPE)
    tl.store(places, values.to(matrix.pointer.dtype.element_ty), mask=inside)


@triton.jit
def load_pairs(pointer, stride_m, stride_n, rows, columns, n_rows, n_keys):
    """Load a tile [rows, columns] of a mask or bias, with 64-bit offsets."""
    offsets = rows.to(tl.int64)[:, None] * stride_m + columns.to(tl.int64)[None, :] * stride_n
    inside = (rows < n_rows)[:, None] & (columns < n_keys)[None, :]
    return tl.load(pointer + offsets, mask=inside, other=0)


@triton.jit
def tanh(x):
    """Compute tanh, by its series where 2 sigmoid(2x) - 1 cancels."""
    square = x * x
    near = x * (1.0 - square * (1.0 / 3 - square * (2.0 / 15 - square * (17.0 / 315))))
    return tl.where(tl.abs(x) < 0.1, near, 2.0 * tl.sigmoid(2.0 * x) - 1.0)


@triton.jit
def scores_of(k, columns, site, EDGE: tl.constexpr, FLAGS: tl.constexpr):
    """Return x [BM, BN] in float32, -inf if masked, and the slope of the scores by scale q k^T.

    The scores are unit x. If nothing is added to q k^T, x is q k^T, so that the unit can join later
    factors.
    """
    x = tl.dot(site.q, tl.trans(k), input_precision=FLAGS.precision)
    chain = 1.0
    if not FLAGS.plain:
        x = x * site.scale
        if FLAGS.softcap:
            bent = tanh(x / site.softcap)
            x = site.softcap * bent
            chain = 1.0 - bent * bent
        if FLAGS.bias:
            bias = load_pairs(
                site.bias, site.bias_m, site.bias_n, site.rows, columns, site.n_rows, site.n_keys
            )
            x += bias.to(tl.float32)
    if EDGE:
        x = tl.where(valid_of(columns, site, FLAGS), x, float("-inf"))
    return x, chain


@triton.jit
def valid_of(columns, site, FLAGS: tl.constexpr):
    """Return the mask of a tile's valid scores."""
    rows, n_keys = site.rows, site.n_keys
    valid = (columns < n_keys)[None, :]
    if FLAGS.padding:
        places = site.mask + columns.to(tl.int64) * site.mask_n
        valid = valid & (tl.load(places, mask=columns < n_keys, other=0) != 0)[None, :]
    elif FLAGS.mask:
        allowed = load_pairs(
            site.mask, site.mask_m, site.mask_n, rows, columns, site.n_rows, n_keys
        )
        valid = valid & (allowed != 0)
    if FLAGS.causal:
        valid = valid & (columns[None, :] <= rows[:, None])
    if FLAGS.window > 0:
        valid = valid & (tl.abs(rows[:, None] - columns[None, :]) < FLAGS.window)
    if FLAGS.packed:
        others = rows[:, None] if site.begin.shape[0] == 1 else columns[None, :]
        valid = valid & (others >= site.begin) & (others < site.end)
    return valid


@triton.jit
def sequence_of(places, boundaries, count, n):
    """Return the begin and end of the packed sequence of each row or key."""
    places = tl.minimum(places, n - 1)
    begin = places * 0
    end = begin + n
    for start in range(0, count, 32):
        numbers = start + tl.arange(0, 32)
        bounds = tl.load(boundaries + numbers, mask=numbers < count, other=0).to(tl.int32)
        under = bounds[None, :] <= places[:, None]
        begin = tl.maximum(begin, tl.max(tl.where(under, bounds[None, :], 0), 1))
        end = tl.minimum(end, tl.min(tl.where(under, n, bounds[None, :]), 1))
    return begin, end


@triton.jit
def stored_tile(scores, rows, columns, n_keys):
    """Load x [BM, BN] of a tile from a matrix of scores."""
    places = scores.pointer + rows.to(tl.int64)[:, None] * scores.stride + columns[None, :]
    return tl.load(places, mask=(columns < n_keys)[None, :], other=float("-inf"))


@triton.jit
def sink_of(site, SHAPE: tl.constexpr):
    """Return x [BM, 1] of the virtual key, and its column."""
    # bounded, so that no intermediate result is infinite
    largest = tl.full([SHAPE.block_m, 1], 1e30, tl.float32)
    x = tl.minimum(site.sink / site.unit, largest, propagate_nan=tl.PropagateNan.ALL)
    x = tl.maximum(x, -largest, propagate_nan=tl.PropagateNan.ALL)
    return x, tl.full([1], SINK, tl.int32)


@triton.jit
def first_of(hit, columns):
    """Return the first key where a row of `hit` is true, FAR if none."""
    return tl.min(tl.where(hit, columns[None, :], FAR), 1)


@triton.jit
def site_of(
    query, strides, rows, b, h, lengths, pairs, sizes, scaling, sink, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """Return the `Site` of a block of queries of one head."""
    q = load_rows(head_of(query, strides, b, h), rows, sizes.rows, SHAPE)
    n_keys, prefix = keys_of(lengths, b, pairs, sizes, FLAGS)
    score = tl.load(sink + h) if FLAGS.sink else 0.0
    begin, end = 0, 0
    if FLAGS.packed:
        begin, end = sequence_of(rows, lengths, sizes.boundaries, sizes.rows)
        begin, end = begin[:, None], end[:, None]
    return site_at(q, rows, b, h, n_keys, prefix, pairs, sizes, scaling, score, begin, end, FLAGS)


@triton.jit
def site_at(
    q, rows, b, h, n_keys, prefix, pairs, sizes, scaling, sink, begin, end, FLAGS: tl.constexpr
):
    mask = pairs.mask + b * pairs.mask_b + h * pairs.mask_h
    bias = pairs.bias + b * pairs.bias_b + h * pairs.bias_h
    scale, softcap = scaling
    unit = scale if FLAGS.plain else 1.0
    return Site(
        q, rows, sizes.rows, n_keys, prefix, sizes.keys, scale, unit, softcap,
        mask, pairs.mask_m, pairs.mask_n, bias, pairs.bias_m, pairs.bias_n, sink,
        begin, end,
    )  # fmt: skip


@triton.jit
def keys_of(lengths, b, pairs, sizes, FLAGS: tl.constexpr):
    """Return the number of keys before the padding, and of leading keys that are all valid."""
    n_keys = sizes.keys
    if FLAGS.lengths:
        n_keys = tl.minimum(n_keys, tl.maximum(tl.load(lengths + b).to(tl.int32), 0))
    prefix = n_keys
    if FLAGS.padding:
        mask = pairs.mask + b * pairs.mask_b
        last = n_keys * 0
        for start in range(0, n_keys, 1024):
            columns = start + tl.arange(0, 1024)
            places = mask + columns.to(tl.int64) * pairs.mask_n
            allowed = tl.load(places, mask=columns < n_keys, other=0) != 0
            last = tl.maximum(last, tl.max(tl.where(allowed, columns + 1, 0), 0))
            prefix = tl.minimum(prefix, tl.min(tl.where(allowed, n_keys, columns), 0))
        n_keys = last
    return n_keys, prefix


@triton.jit
def key_span(low, site, SHAPE: tl.constexpr, FLAGS: tl.constexpr):
    """Return the tiles of keys that the block of rows from `low` on may attend to."""
    high = tl.minimum(low + SHAPE.block_m, site.n_rows) - 1
    first = low * 0
    inner = first
    last = tl.cdiv(site.n_keys, SHAPE.block_n)
    outer = site.prefix // SHAPE.block_n
    if FLAGS.causal:
        last = tl.minimum(last, high // SHAPE.block_n + 1)
        outer = tl.minimum(outer, (low + 1) // SHAPE.block_n)
    if FLAGS.window > 0:
        last = tl.minimum(last, (high + FLAGS.window - 1) // SHAPE.block_n + 1)
        outer = tl.minimum(outer, (low + FLAGS.window) // SHAPE.block_n)
        first = tl.maximum(low - FLAGS.window + 1, 0) // SHAPE.block_n
        inner = tl.cdiv(tl.maximum(high - FLAGS.window + 1, 0), SHAPE.block_n)
    if FLAGS.packed:
        first = tl.maximum(first, tl.min(site.begin) // SHAPE.block_n)
        inner = tl.maximum(inner, tl.cdiv(tl.max(site.begin), SHAPE.block_n))
        last = tl.minimum(last, tl.cdiv(tl.max(site.end), SHAPE.block_n))
        outer = tl.minimum(outer, tl.min(site.end) // SHAPE.block_n)
    return span_of(first, inner, outer, last, FLAGS)


@triton.jit
def row_span(start, n_keys, n_rows, begin, end, SHAPE: tl.constexpr, FLAGS: tl.constexpr):
    """Return the blocks of rows that may attend to a tile of keys; padding is not an edge here."""
    final = tl.minimum(start + SHAPE.block_n, n_keys) - 1
    first = start * 0
    inner = first
    last = tl.where(start < n_keys, tl.cdiv(n_rows, SHAPE.block_m), 0)
    outer = last
    if FLAGS.window > 0:
        first = tl.maximum(start - FLAGS.window + 1, 0) // SHAPE.block_m
        inner = tl.cdiv(tl.maximum(final - FLAGS.window + 1, 0), SHAPE.block_m)
        last = tl.minimum(last, (final + FLAGS.window - 1) // SHAPE.block_m + 1)
        outer = tl.minimum(outer, (start + FLAGS.window) // SHAPE.block_m)
    if FLAGS.causal:
        first = tl.maximum(first, start // SHAPE.block_m)
        inner = tl.maximum(inner, tl.cdiv(final, SHAPE.block_m))
    if FLAGS.packed:
        first = tl.maximum(first, tl.min(begin) // SHAPE.block_m)
        inner = tl.maximum(inner, tl.cdiv(tl.max(begin), SHAPE.block_m))
        last = tl.minimum(last, tl.cdiv(tl.max(end), SHAPE.block_m))
        outer = tl.minimum(outer, tl.min(end) // SHAPE.block_m)
    return span_of(first, inner, outer, last, FLAGS)


@triton.jit
def span_of(first, inner, outer, last, FLAGS: tl.constexpr):
    last = tl.maximum(first, last)
    if FLAGS.ragged:  # every tile is computed like an edge tile
        return Span(first, first, last, last)
    else:
        inner = tl.minimum(tl.maximum(inner, first), last)
        return Span(first, inner, tl.minimum(tl.maximum(outer, inner), last), last)


@triton.constexpr_function
def has_edges(ragged, full):
    """Whether tiles at the edges of a block's keys are computed separately."""
    return not ragged and not full


@triton.constexpr_function
def has_row_edges(ragged, causal, window, packed):
    """Whether blocks of rows at edges are computed separately; masked keys make no edge."""
    return (causal or window > 0 or packed) and not ragged


@triton.jit
def edge_at(i, span):
    """Number of the i-th edge tile, i < `edges_of`."""
    left = span.inner - span.first
    return tl.where(i < left, span.first + i, span.outer + i - left)


@triton.jit
def edges_of(span):
    return (span.inner - span.first) + (span.last - span.outer)

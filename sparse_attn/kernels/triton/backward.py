"""The backward kernels: one by blocks of queries, one by blocks of keys; no atomics.

The first also sums what the gradient of a row needs, and stores it for the second. Where all queries
of a head fit into one block (WHOLE) it writes the gradients to keys and values as well.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.forward import keys_of, pairs_of, place_of
from sparse_attn.kernels.triton.maps import row_gradient, slopes, weights
from sparse_attn.kernels.triton.scores import (
    dropped,
    key_range,
    load_rows,
    row_range,
    scores_of,
    store_rows,
)
from sparse_attn.kernels.triton.solve import is_live


@triton.jit
def row_statistics(pointer, indices, row, inside, n_total, FAMILY: tl.constexpr):
    """What the forward kernel stored of a block of rows: stats, low, high."""
    a = tl.load(pointer + row, mask=inside, other=0.0)
    b = tl.load(pointer + n_total + row, mask=inside, other=0.0)
    c, d, e = a, a, a
    low = (row * 0).to(tl.int32)
    high = low
    if FAMILY != "pointwise":
        c = tl.load(pointer + 2 * n_total + row, mask=inside, other=0.0)
        d = tl.load(pointer + 3 * n_total + row, mask=inside, other=0.0)
        e = tl.load(pointer + 4 * n_total + row, mask=inside, other=0.0)
    if FAMILY == "threshold":
        low = tl.load(indices + row, mask=inside, other=0)
        high = tl.load(indices + n_total + row, mask=inside, other=0)
    return (a, b, c, d, e), low, high


@triton.jit
def weight_gradient(do, v, p, columns, site, drop, DROPOUT: tl.constexpr, FLAGS: tl.constexpr):
    """The weights that met the values, and g = dL/dp of the weights before dropout."""
    seed, head, rate = drop
    g = tl.dot(do, tl.trans(v), input_precision=FLAGS[5])
    used = p
    if DROPOUT:
        used = dropped(p, seed, head, site[1], columns, site[4], rate)
        g = dropped(g, seed, head, site[1], columns, site[4], rate)
    return used, g


@triton.jit
def scores_gradient(
    s, p, g, u, stats, low, high, gradient, columns, slope, FAMILY: tl.constexpr
):  # fmt: skip
    """dL / d(q k^T) of a tile."""
    gamma, kappa, pull = gradient
    _, temperature, _, share, _ = stats
    ds = u * (g - gamma[:, None])
    if FAMILY == "projection":
        ds = ds / tl.where(temperature > 0.0, temperature, 1.0)[:, None] + kappa[:, None]
    elif FAMILY == "threshold":
        to_low = tl.where(columns[None, :] == low[:, None], ((1.0 - share) * pull)[:, None], 0.0)
        to_high = tl.where(columns[None, :] == high[:, None], (share * pull)[:, None], 0.0)
        ds = ds - to_low - to_high
    return tl.where(s == float("-inf"), 0.0, ds) * slope


@triton.jit
def pair_tile(
    start, inputs, do, stats, low, site, theta, drop, MAP: tl.constexpr, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Everything a tile of queries and keys needs: see `weight_gradient` and `slopes`."""
    keys, values = inputs
    k_pointer, k_stride = keys
    v_pointer, v_stride = values
    columns = start + tl.arange(0, SHAPE[1])
    k = load_rows(k_pointer, k_stride, columns, site[3], SHAPE[2], SHAPE[3])
    v = load_rows(v_pointer, v_stride, columns, site[3], SHAPE[2], SHAPE[3])
    s, slope = scores_of(k, columns, site, FLAGS)
    p = weights(s, stats, low, columns, theta, MAP[0], MAP[1])
    used, g = weight_gradient(do, v, p, columns, site, drop, DROPOUT, FLAGS)
    u, by_theta = slopes(s, p, stats, low, columns, theta, MAP[0], MAP[1])
    return columns, k, s, slope, p, used, g, u, by_theta


@triton.jit
def query_rows(
    inputs, do, o, stats, low, high, site, alive, theta, drop, moments, whole,
    SKIP: tl.constexpr, MOMENTS: tl.constexpr, WHOLE: tl.constexpr, MAP: tl.constexpr,
    FLAGS: tl.constexpr, SHAPE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """dq of a block of rows, having stored the rows' (gamma, kappa or pull) and d parameter."""
    q, rows, n_rows = site[0], site[1], site[2]
    if SHAPE[4]:
        bounds = (0, SHAPE[1])
    else:
        bounds = key_range(tl.min(rows, 0), site[3], SHAPE, FLAGS)
    if SHAPE[4]:
        tile = pair_tile(0, inputs, do, stats, low, site, theta, drop, MAP, FLAGS, SHAPE, DROPOUT)
    zero = tl.full([SHAPE[0]], 0.0, tl.float32)
    delta = zero
    ug, u_sum, vg, v_sum = zero, zero, zero, zero
    if MOMENTS:
        for start in range(bounds[0], bounds[1], SHAPE[1]):
            if is_live(alive, start, SKIP, SHAPE):
                if not SHAPE[4]:
                    tile = pair_tile(
                        start, inputs, do, stats, low, site, theta, drop, MAP, FLAGS, SHAPE, DROPOUT
                    )
                columns, k, s, slope, p, used, g, u, by_theta = tile
                delta += tl.sum(p * g, 1)
                ug += tl.sum(u * g, 1)
                u_sum += tl.sum(u, 1)
                vg += tl.sum(by_theta * g, 1)
                v_sum += tl.sum(by_theta, 1)
    else:
        delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    gamma, kappa, pull, by_parameter = row_gradient(
        ug, u_sum, vg, v_sum, delta, stats, MAP[0], MAP[1]
    )
    row, row_gradients, n_total = moments
    inside = rows < n_rows
    tl.store(row_gradients + row, gamma, mask=inside)
    tl.store(row_gradients + n_total + row, by_parameter, mask=inside)
    if MAP[0] == "projection":
        tl.store(row_gradients + 2 * n_total + row, kappa, mask=inside)
    if MAP[0] == "threshold":
        tl.store(row_gradients + 2 * n_total + row, pull, mask=inside)
    gradient = (gamma, kappa, pull)
    dq = tl.full([SHAPE[0], SHAPE[3]], 0.0, tl.float32)
    for start in range(bounds[0], bounds[1], SHAPE[1]):
        if is_live(alive, start, SKIP, SHAPE):
            if not SHAPE[4]:
                tile = pair_tile(
                    start, inputs, do, stats, low, site, theta, drop, MAP, FLAGS, SHAPE, DROPOUT
                )
            columns, k, s, slope, p, used, g, u, by_theta = tile
            ds = scores_gradient(s, p, g, u, stats, low, high, gradient, columns, slope, MAP[0]).to(
                q.dtype
            )
            dq += tl.dot(ds, k, input_precision=FLAGS[5])
            if WHOLE:
                dk_pointer, dk_stride, dv_pointer, dv_stride, all_keys = whole
                dk = tl.dot(tl.trans(ds), q, input_precision=FLAGS[5])
                dv = tl.dot(tl.trans(used.to(do.dtype)), do, input_precision=FLAGS[5])
                store_rows(dk_pointer, dk_stride, columns, all_keys, dk, SHAPE[2], SHAPE[3])
                store_rows(dv_pointer, dv_stride, columns, all_keys, dv, SHAPE[2], SHAPE[3])
                if SHAPE[5]:
                    rest = columns + SHAPE[1]
                    store_rows(dk_pointer, dk_stride, rest, all_keys, dk * 0.0, SHAPE[2], SHAPE[3])
                    store_rows(dv_pointer, dv_stride, rest, all_keys, dv * 0.0, SHAPE[2], SHAPE[3])
    return dq


@triton.jit
def query_kernel(
    query, key, value, out, grad, dq, dk, dv,
    q_strides, k_strides, v_strides, o_strides, g_strides, dq_strides, dk_strides, dv_strides,
    stats, indices, row_gradients, alive, alive_stride, theta, lengths, seed, masks, sizes,
    scaling, rate,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr, HALF: tl.constexpr,
    SKIP: tl.constexpr, HAS_LENGTHS: tl.constexpr, DROPOUT: tl.constexpr, MOMENTS: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of queries, batch x heads); arguments as `forward_kernel`."""
    heads, groups, n_rows, all_keys, n_total = sizes
    block, head = tl.program_id(0), tl.program_id(1)
    b, h, h_key = place_of(head, heads, groups)
    pairs = pairs_of(masks, b, h)
    n_keys = keys_of(lengths, b, all_keys, pairs, FLAGS, HAS_LENGTHS)
    rows = block * SHAPE[0] + tl.arange(0, SHAPE[0])
    inside = rows < n_rows
    row = head.to(tl.int64) * n_rows + rows
    q = load_rows(
        query + b * q_strides[0] + h * q_strides[1], q_strides[2], rows, n_rows, SHAPE[2], SHAPE[3]
    )
    do = load_rows(
        grad + b * g_strides[0] + h * g_strides[1], g_strides[2], rows, n_rows, SHAPE[2], SHAPE[3]
    )
    o = do
    if not MOMENTS:
        o = load_rows(
            out + b * o_strides[0] + h * o_strides[1], o_strides[2], rows, n_rows, SHAPE[2],
            SHAPE[3],
        )  # fmt: skip
    site = (q, rows, n_rows, n_keys, all_keys, scaling, pairs)
    inputs = (
        (key + b * k_strides[0] + h_key * k_strides[1], k_strides[2]),
        (value + b * v_strides[0] + h_key * v_strides[1], v_strides[2]),
    )
    saved, low, high = row_statistics(stats, indices, row, inside, n_total, MAP[0])
    alive += (head.to(tl.int64) * tl.num_programs(0) + block) * alive_stride
    drop = (0, head, rate)
    if DROPOUT:
        drop = (tl.load(seed), head, rate)
    whole = (
        dk + b * dk_strides[0] + h_key * dk_strides[1], dk_strides[2],
        dv + b * dv_strides[0] + h_key * dv_strides[1], dv_strides[2], all_keys,
    )  # fmt: skip
    theta_h = tl.load(theta + h)
    moments = (row, row_gradients, n_total)
    if HALF is None:
        result = query_rows(
            inputs, do, o, saved, low, high, site, alive, theta_h, drop, moments, whole,
            SKIP, MOMENTS, WHOLE, MAP, FLAGS, SHAPE, DROPOUT,
        )  # fmt: skip
    elif n_keys <= HALF[1]:
        result = query_rows(
            inputs, do, o, saved, low, high, site, alive, theta_h, drop, moments,
            whole, SKIP, MOMENTS, WHOLE, MAP, FLAGS, HALF, DROPOUT,
        )  # fmt: skip
    else:
        result = query_rows(
            inputs, do, o, saved, low, high, site, alive, theta_h, drop, moments, whole,
            SKIP, MOMENTS, WHOLE, MAP, FLAGS, SHAPE, DROPOUT,
        )  # fmt: skip
    store_rows(
        dq + b * dq_strides[0] + h * dq_strides[1], dq_strides[2], rows, n_rows, result, SHAPE[2],
        SHAPE[3],
    )  # fmt: skip


@triton.jit
def key_kernel(
    query, key, value, grad, dk, dv,
    q_strides, k_strides, v_strides, g_strides, dk_strides, dv_strides,
    stats, indices, row_gradients, alive, alive_stride, theta, lengths, seed, masks, sizes,
    scaling, rate,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr, SKIP: tl.constexpr,
    HAS_LENGTHS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of keys, batch x key heads); every query head of the group in turn."""
    heads, groups, n_rows, all_keys, n_total = sizes
    block, head_key = tl.program_id(0), tl.program_id(1)
    b, h_key, _h = place_of(head_key, heads // groups, 1)
    # padding is the same for every head; a mask that differs by head has no padding
    pairs = pairs_of(masks, b, h_key * groups)
    n_keys = keys_of(lengths, b, all_keys, pairs, FLAGS, HAS_LENGTHS)
    columns = block * SHAPE[1] + tl.arange(0, SHAPE[1])
    k = load_rows(
        key + b * k_strides[0] + h_key * k_strides[1], k_strides[2], columns, n_keys, SHAPE[2],
        SHAPE[3],
    )  # fmt: skip
    v = load_rows(
        value + b * v_strides[0] + h_key * v_strides[1], v_strides[2], columns, n_keys, SHAPE[2],
        SHAPE[3],
    )  # fmt: skip
    first, last = row_range(block * SHAPE[1], n_rows, SHAPE, FLAGS)
    last = tl.where(block * SHAPE[1] < n_keys, last, 0)
    blocks = tl.cdiv(n_rows, SHAPE[0])
    dk_sum = tl.full([SHAPE[1], SHAPE[3]], 0.0, tl.float32)
    dv_sum = tl.full([SHAPE[1], SHAPE[3]], 0.0, tl.float32)
    for member in range(0, groups):
        h = h_key * groups + member
        head = (b * heads + h).to(tl.int32)
        theta_h = tl.load(theta + h)
        pairs = pairs_of(masks, b, h)
        drop = (0, head, rate)
        if DROPOUT:
            drop = (tl.load(seed), head, rate)
        for start in range(first, last, SHAPE[0]):
            place = (head.to(tl.int64) * blocks + start // SHAPE[0]) * alive_stride
            if is_live(alive + place + block, 0, SKIP, SHAPE):
                rows = start + tl.arange(0, SHAPE[0])
                inside = rows < n_rows
                row = head.to(tl.int64) * n_rows + rows
                q = load_rows(
                    query + b * q_strides[0] + h * q_strides[1], q_strides[2], rows, n_rows,
                    SHAPE[2], SHAPE[3],
                )  # fmt: skip
                do = load_rows(
                    grad + b * g_strides[0] + h * g_strides[1], g_strides[2], rows, n_rows,
                    SHAPE[2], SHAPE[3],
                )  # fmt: skip
                site = (q, rows, n_rows, n_keys, all_keys, scaling, pairs)
                saved, low, high = row_statistics(stats, indices, row, inside, n_total, MAP[0])
                gamma = tl.load(row_gradients + row, mask=inside, other=0.0)
                extra = gamma
                if MAP[0] != "pointwise":
                    extra = tl.load(row_gradients + 2 * n_total + row, mask=inside, other=0.0)
                s, slope = scores_of(k, columns, site, FLAGS)
                s = tl.where(inside[:, None], s, float("-inf"))
                p = weights(s, saved, low, columns, theta_h, MAP[0], MAP[1])
                used, g = weight_gradient(do, v, p, columns, site, drop, DROPOUT, FLAGS)
                u, by_theta = slopes(s, p, saved, low, columns, theta_h, MAP[0], MAP[1])
                ds = scores_gradient(
                    s, p, g, u, saved, low, high, (gamma, extra, extra), columns, slope, MAP[0]
                )
                dv_sum += tl.dot(tl.trans(used.to(do.dtype)), do, input_precision=FLAGS[5])
                dk_sum += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=FLAGS[5])
    store_rows(
        dk + b * dk_strides[0] + h_key * dk_strides[1], dk_strides[2], columns, all_keys, dk_sum,
        SHAPE[2], SHAPE[3],
    )  # fmt: skip
    store_rows(
        dv + b * dv_strides[0] + h_key * dv_strides[1], dv_strides[2], columns, all_keys, dv_sum,
        SHAPE[2], SHAPE[3],
    )  # fmt: skip

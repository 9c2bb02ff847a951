"""The two custom operators through which PyTorch sees the kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from sparse_attn.kernels.operators import (
    INPUTS,
    WANTED,
    OperatorInputs,
    empty_rows,
    register,
    rows_dense,
)
from sparse_attn.kernels.triton.backward import bwd_dq_kernel
from sparse_attn.kernels.triton.backward_keys import bwd_dkdv_kernel
from sparse_attn.kernels.triton.forward import fwd_kernel
from sparse_attn.kernels.triton.plan import (
    backward_shape,
    forward_shape,
    half_of,
    needs_moments,
    plan,
    skips,
    tile_side,
    tiled,
)


@custom_op(
    "sparse_attn::triton_forward",
    mutates_args=(),
    schema=f"({INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def triton_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """out (B, H, Q, D), row statistics, indices of owning keys, live tiles."""
    inputs = OperatorInputs(*arguments).dense()
    query, key, value = inputs[:3]
    out, stats, indices, alive = _empty_outputs(inputs)
    run_time, compile_time = plan(inputs)
    shape, warps = forward_shape(key)
    grid = (-(-query.shape[2] // shape.block_m) * query.shape[0] * query.shape[1],)
    with torch.cuda.device_of(query):
        fwd_kernel[grid](
            query, key, value, out,
            query.stride(), key.stride(), value.stride(), out.stride(),
            stats, indices, alive, alive.shape[-1], **run_time, **compile_time, SHAPE=shape,
            HALF=half_of(shape, compile_time["FLAGS"]), num_warps=warps, num_stages=2,
        )  # fmt: skip
    return out, stats, indices, alive


@triton_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _empty_outputs(OperatorInputs(*arguments))


def _empty_outputs(inputs: OperatorInputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, rows, dim = inputs.query.shape
    out = empty_rows(inputs.query, batch, heads, rows, dim)
    pointwise = inputs.family == "pointwise"
    num_rows = batch * heads * rows
    stats = out.new_empty(2 if pointwise else 5, num_rows, dtype=torch.float32)
    indices = out.new_empty(0 if pointwise else 2, num_rows, dtype=torch.int32)
    if not skips(inputs):
        return out, stats, indices, out.new_empty(0, dtype=torch.int8)
    side = tile_side(inputs.key)
    tiles = (batch * heads, -(-rows // side), -(-inputs.key.shape[2] // side))
    return out, stats, indices, out.new_zeros(tiles, dtype=torch.int8)


@custom_op(
    "sparse_attn::triton_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {INPUTS}, Tensor out, Tensor stats, Tensor indices, Tensor alive, "
    f"{WANTED}) -> Tensor[]",
)
def triton_backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients of query, key and value, and of parameter and sink where wanted; none of bias."""
    *given, out, stats, indices, alive, want_parameter, want_sink, _ = arguments
    inputs = OperatorInputs(*given).dense()
    q, k, v = inputs[:3]
    g = rows_dense(grad)
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    run_time, compile_time = plan(inputs)
    pointwise = inputs.family == "pointwise"
    columns = 4 if inputs.sink is not None else 2 if pointwise else 3
    row_gradients = stats.new_empty(columns, stats.shape[1])
    shape, warps, whole = backward_shape(q, k)
    saved = (stats, indices, row_gradients, alive, alive.shape[-1])
    options = {**run_time, **compile_time, "num_stages": 2}
    batch, heads = q.shape[:2]
    with torch.cuda.device_of(q):
        bwd_dq_kernel[(-(-q.shape[2] // shape.block_m) * batch * heads,)](
            q, k, v, out, g, dq, dk, dv,
            q.stride(), k.stride(), v.stride(), out.stride(), g.stride(),
            dq.stride(), dk.stride(), dv.stride(), *saved, **options, SHAPE=shape,
            HALF=half_of(shape, compile_time["FLAGS"]), WHOLE=whole,
            MOMENTS=want_parameter or needs_moments(inputs), num_warps=warps,
        )  # fmt: skip
        if not whole:
            tile = tiled(k)
            bwd_dkdv_kernel[(-(-k.shape[2] // tile.block_n) * batch * k.shape[1],)](
                q, k, v, g, dk, dv,
                q.stride(), k.stride(), v.stride(), g.stride(), dk.stride(), dv.stride(),
                *saved, **options, SHAPE=tile, num_warps=4,
            )  # fmt: skip
    # what the parameter, 1, and the sink, 3, get from each row
    wanted = [i for i, want in ((1, want_parameter), (3, want_sink)) if want]
    by_row = (row_gradients.select(0, i).view(batch, heads, -1) for i in wanted)
    return [dq, dk, dv, *(rows.sum((0, 2)) for rows in by_row)]


@triton_backward.register_fake
def _(grad: Tensor, *arguments: Any) -> list[Tensor]:
    inputs = OperatorInputs(*arguments[: len(OperatorInputs._fields)]).dense()
    found = map(torch.empty_like, inputs[:3])
    return [*found, *(t.new_empty(t.shape) for t in inputs.learned(arguments[-3:]))]


attend = register("triton", triton_forward, triton_backward, results=1, saved=slice(None))

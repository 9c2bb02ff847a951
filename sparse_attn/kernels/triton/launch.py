"""The two custom operators through which PyTorch sees the kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import custom_op

from sparse_attn.kernels.operators import INPUTS, OperatorInputs, register, rows_dense
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
    """out (B, Q, H, D), row statistics, indices of owning keys, live tiles."""
    inputs = OperatorInputs(*arguments).dense()
    query, key, value = inputs[:3]
    out, stats, indices, alive = _outputs(*inputs)
    run_time, compile_time = plan(inputs)
    shape, warps = forward_shape(key)
    grid = (triton.cdiv(query.shape[2], shape.block_m) * query.shape[0] * query.shape[1],)
    with torch.cuda.device_of(query):
        fwd_kernel[grid](
            query, key, value, out,
            query.stride(), key.stride(), value.stride(), out.transpose(1, 2).stride(),
            stats, indices, alive, alive.shape[-1], **run_time, **compile_time, SHAPE=shape,
            HALF=half_of(shape, compile_time["FLAGS"]), num_warps=warps, num_stages=2,
        )  # fmt: skip
    return out, stats, indices, alive


@triton_forward.register_fake
def _outputs(*arguments: Any) -> tuple[Tensor, ...]:
    """Empty outputs of the forward pass; `out` in the layout that Transformers expects."""
    inputs = OperatorInputs(*arguments)
    batch, heads, rows, dim = inputs.query.shape
    out = inputs.query.new_empty(batch, rows, heads, dim)
    pointwise = inputs.family == "pointwise"
    num_rows = batch * heads * rows
    stats = out.new_empty(2 if pointwise else 5, num_rows, dtype=torch.float32)
    indices = out.new_empty(1 if pointwise else 2, 1 if pointwise else num_rows, dtype=torch.int32)
    tiles = (1, 1, 1)
    if skips(inputs):
        side = tile_side(inputs.key)
        tiles = (batch * heads, -(-rows // side), -(-inputs.key.shape[2] // side))
    return out, stats, indices, out.new_zeros(tiles, dtype=torch.int8)


@custom_op(
    "sparse_attn::triton_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {INPUTS}, Tensor out, Tensor stats, Tensor indices, Tensor alive, "
    "bool want_parameter, bool want_bias) -> Tensor[]",
)
def triton_backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients of query, key, value, the parameter of each head (H,) and its sink; no bias."""
    *given, out, stats, indices, alive, want_parameter, _ = arguments
    inputs = OperatorInputs(*given).dense()
    q, k, v = inputs[:3]
    g = rows_dense(grad.transpose(1, 2))
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
        bwd_dq_kernel[(triton.cdiv(q.shape[2], shape.block_m) * batch * heads,)](
            q, k, v, out, g, dq, dk, dv,
            q.stride(), k.stride(), v.stride(), out.transpose(1, 2).stride(), g.stride(),
            dq.stride(), dk.stride(), dv.stride(), *saved, **options, SHAPE=shape,
            HALF=half_of(shape, compile_time["FLAGS"]), WHOLE=whole,
            MOMENTS=want_parameter or needs_moments(inputs), num_warps=warps,
        )  # fmt: skip
        if not whole:
            tile = tiled(k)
            bwd_dkdv_kernel[(triton.cdiv(k.shape[2], tile.block_n) * batch * k.shape[1],)](
                q, k, v, g, dk, dv,
                q.stride(), k.stride(), v.stride(), g.stride(), dk.stride(), dv.stride(),
                *saved, **options, SHAPE=tile, num_warps=4,
            )  # fmt: skip
    by_head = [rows.view(batch, heads, -1).sum((0, 2)) for rows in row_gradients[1::2]]
    # bias gets none, nor a sink that is not there
    return [dq, dk, dv, *by_head, *(stats.new_empty(0) for _ in range(3 - len(by_head)))]


@triton_backward.register_fake
def _(grad: Tensor, *arguments: Any) -> list[Tensor]:
    inputs = OperatorInputs(*arguments[: len(OperatorInputs._fields)]).dense()
    found = map(torch.empty_like, inputs[:4])
    nothing = inputs.parameter.new_empty(0)
    by_sink = nothing if inputs.sink is None else torch.empty_like(inputs.sink)
    return [*found, by_sink, torch.empty_like(nothing)]


attend = register("triton", triton_forward, triton_backward, saved=slice(None))

"""The two custom operators through which PyTorch sees the kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from sparse_attn.kernels import flops
from sparse_attn.kernels.call import no_second_derivative, rows_dense
from sparse_attn.kernels.triton.backward import query_kernel
from sparse_attn.kernels.triton.backward_keys import key_kernel
from sparse_attn.kernels.triton.forward import forward_kernel
from sparse_attn.kernels.triton.plan import (
    KINDS,
    backward_shape,
    forward_shape,
    half_of,
    plan,
    skips,
    tile_side,
    tiled,
)


@torch.library.custom_op("sparse_attn::triton_forward", mutates_args=())
def triton_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    theta: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    kind: str,
    softcap: float,
    causal: bool,
    window: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out (B, Q, H, D), row statistics, indices of owning keys, live tiles."""
    query, key, value = map(rows_dense, (query, key, value))
    out, stats, indices, alive = _outputs(query, key, kind)
    run_time, compile_time = plan(
        query, key, mask, bias, lengths, kind, softcap, causal, window, scale, dropout
    )
    shape, warps = forward_shape(key)
    grid = (triton.cdiv(query.shape[2], shape.block_m) * query.shape[0] * query.shape[1],)
    with torch.cuda.device_of(query):
        forward_kernel[grid](
            query, key, value, out,
            query.stride(), key.stride(), value.stride(), out.transpose(1, 2).stride(),
            stats, indices, alive, alive.shape[-1], theta, run_time.pop("lengths"),
            theta if seed is None else seed,
            **run_time, **compile_time, SHAPE=shape, HALF=half_of(shape, compile_time["FLAGS"]),
            num_warps=warps, num_stages=2,
        )  # fmt: skip
    return out, stats, indices, alive


@triton_forward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, theta: Tensor, mask: Any, lengths: Any, bias: Any,
    seed: Any, kind: str, *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _outputs(query, key, kind)


def _outputs(query: Tensor, key: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty outputs of the forward pass; `out` in the layout that Transformers goes on with."""
    batch, heads, rows, dim = query.shape
    out = query.new_empty(batch, rows, heads, dim)
    pointwise = KINDS[kind] == "pointwise"
    lines = batch * heads * rows
    stats = query.new_empty(2 if pointwise else 5, lines, dtype=torch.float32)
    indices = query.new_empty(1 if pointwise else 2, 1 if pointwise else lines, dtype=torch.int32)
    tiles = (1, 1, 1)
    if skips(kind, key):
        side = tile_side(key)
        tiles = (batch * heads, -(-rows // side), -(-key.shape[2] // side))
    return out, stats, indices, query.new_zeros(tiles, dtype=torch.int8)


@torch.library.custom_op("sparse_attn::triton_backward", mutates_args=())
def triton_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    stats: Tensor,
    indices: Tensor,
    alive: Tensor,
    theta: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    learns: bool,
    kind: str,
    softcap: float,
    causal: bool,
    window: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients to query, key, value and the parameter of each head (H,)."""
    q, k, v, g = map(rows_dense, (query, key, value, grad))
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    run_time, compile_time = plan(
        q, k, mask, bias, lengths, kind, softcap, causal, window, scale, dropout
    )
    lines = stats.shape[1]
    row_gradients = stats.new_empty(2 if KINDS[kind] == "pointwise" else 3, lines)
    shape, warps, whole = backward_shape(q, k)
    shared = (
        stats, indices, row_gradients, alive, alive.shape[-1], theta, run_time.pop("lengths"),
        theta if seed is None else seed,
    )  # fmt: skip
    options = {**run_time, **compile_time, "num_stages": 2}
    batch, heads = q.shape[:2]
    with torch.cuda.device_of(q):
        query_kernel[(triton.cdiv(q.shape[2], shape.block_m) * batch * heads,)](
            q, k, v, out, g, dq, dk, dv,
            q.stride(), k.stride(), v.stride(), out.transpose(1, 2).stride(), g.stride(),
            dq.stride(), dk.stride(), dv.stride(), *shared, **options, SHAPE=shape,
            HALF=half_of(shape, compile_time["FLAGS"]),
            MOMENTS=learns or KINDS[kind] != "pointwise",
            WHOLE=whole, num_warps=warps,
        )  # fmt: skip
        if not whole:
            tile = tiled(k)
            key_kernel[(triton.cdiv(k.shape[2], tile.block_n) * batch * k.shape[1],)](
                q, k, v, g, dk, dv,
                q.stride(), k.stride(), v.stride(), g.stride(), dk.stride(), dv.stride(),
                *shared, **options, SHAPE=tile, num_warps=4,
            )  # fmt: skip
    d_theta = row_gradients[1].view(batch, heads, -1).sum((0, 2))
    return dq, dk, dv, d_theta


@triton_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, stats: Tensor,
    indices: Tensor, alive: Tensor, theta: Tensor, *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v = map(rows_dense, (query, key, value))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(theta)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, theta, mask, lengths, bias, seed, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, *output, theta, mask, lengths, bias, seed)


def _gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    learns = ctx.needs_input_grad[3]
    gradients = triton_backward(grad.transpose(1, 2), *ctx.saved_tensors, learns, *ctx.options)
    return *gradients[:3], gradients[3] if learns else None, *(None,) * 10


triton_forward.register_autograd(_gradients, setup_context=_keep)
triton_backward.register_autograd(no_second_derivative)
flops.register(torch.ops.sparse_attn.triton_forward, torch.ops.sparse_attn.triton_backward)

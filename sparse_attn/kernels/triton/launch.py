"""The two custom operators that call the kernels."""

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
from sparse_attn.kernels.triton.decoding import (
    decode_scores_kernel,
    decode_statistics_kernel,
    decode_values_kernel,
)
from sparse_attn.kernels.triton.forward import fwd_kernel
from sparse_attn.kernels.triton.plan import (
    LaunchPlan,
    decode_shapes,
    forward_setting,
    needs_moments,
    plan,
    skips,
)
from sparse_attn.kernels.triton.saved import GRADIENTS, POINTWISE, WIDE


@custom_op(
    "sparse_attn::triton_forward",
    mutates_args=(),
    schema=f"({INPUTS}, bool grad, bool moments) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def triton_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Compute out (B, H, Q, D), a second output, row statistics, lists and marks of live tiles."""
    *given, grad, moments = arguments
    inputs = OperatorInputs(*given).dense()
    query, key, value = inputs[:3]
    planned = plan(inputs, grad, moments)
    shape, chosen = planned.forward
    outputs = _empty_outputs(inputs, grad, moments)
    out, second, *_ = outputs
    if planned.split is not None:
        _decode(inputs, planned, out)
        return outputs
    grid = (-(-query.shape[2] // shape.block_m) * query.shape[0] * query.shape[1],)
    with torch.cuda.device_of(query):
        fwd_kernel[grid](
            query, key, value, out, second,
            query.stride(), key.stride(), value.stride(), out.stride(),
            *outputs[2:], **planned.arguments(inputs), SHAPE=shape, **chosen,
        )  # fmt: skip
    return outputs


def _decode(inputs: OperatorInputs, planned: LaunchPlan, out: Tensor) -> None:
    """Compute `out` of few queries, with the keys split over programs."""
    query, key, value = inputs[:3]
    batch, heads, rows, dim = query.shape
    assert planned.split is not None
    splits, chunk = planned.split
    scores = query.new_empty(batch, heads, rows, key.shape[2], dtype=torch.float32)
    stats = scores.new_empty(batch * heads * rows, WIDE.value)
    parts = scores.new_empty(splits, batch, heads, rows, dim)
    options = planned.arguments(inputs)
    options["MAP"] = options["MAP"]._replace(skip=False)
    options["FLAGS"] = planned.flags._replace(ragged=True)
    computed, stored = decode_shapes(query, key)
    programs = batch * heads
    with torch.cuda.device_of(query):
        decode_scores_kernel[(programs * splits,)](
            query, key, query.stride(), key.stride(), scores, splits, chunk, **options,
            SHAPE=computed, num_warps=4, num_stages=3,
        )  # fmt: skip
        decode_statistics_kernel[(programs,)](scores, stats, **options, SHAPE=stored, num_warps=4)
        decode_values_kernel[(programs * splits,)](
            scores, stats, value, value.stride(), parts, splits, chunk, **options,
            SHAPE=computed, num_warps=4, num_stages=3,
        )  # fmt: skip
    out.copy_(parts.sum(0))


@triton_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *given, grad, moments = arguments
    return _empty_outputs(OperatorInputs(*given), grad, moments)


def _empty_outputs(inputs: OperatorInputs, grad: bool, moments: bool) -> tuple[Tensor, ...]:
    batch, heads, rows, dim = inputs.query.shape
    out = empty_rows(inputs.query, batch, heads, rows, dim)
    has_second = inputs.family in ("threshold", "projection") or inputs.kernel == "clipped-softmax"
    second = torch.empty_like(out) if grad and has_second and not moments else out.new_empty(0)
    numbers = POINTWISE if inputs.family == "pointwise" else WIDE
    stats = out.new_empty(batch * heads * rows if grad else 0, numbers.value, dtype=torch.float32)
    if not skips(inputs, grad):
        return out, second, stats, out.new_empty(0), out.new_empty(0)
    tile = forward_setting(inputs, grad)
    blocks, columns = -(-rows // tile.block_m), -(-inputs.key.shape[2] // tile.block_n)
    short = torch.int16 if max(blocks, columns) < 2**15 else torch.int32
    tiles = out.new_empty(batch * heads, blocks, columns + 1, dtype=short)
    size = (batch * heads, columns, blocks) if grad else (0,)
    marks = out.new_zeros(size, dtype=torch.int8)
    return out, second, stats, tiles, marks


@custom_op(
    "sparse_attn::triton_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {INPUTS}, Tensor out, Tensor second, Tensor stats, "
    f"Tensor tiles, Tensor marks, {WANTED}) -> Tensor[]",
)
def triton_backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    """Compute gradients of query, key and value, and of parameter and sink where wanted."""
    *given, out, second, stats, tiles, marks, want_parameter, want_sink, _ = arguments
    inputs = OperatorInputs(*given).dense()
    q, k, v = inputs[:3]
    g = rows_dense(grad)
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    moments = needs_moments(inputs, want_parameter)
    planned = plan(inputs, True, moments)
    row_gradients = stats.new_empty(stats.shape[0], GRADIENTS.value)
    shape, chosen, whole = planned.backward
    saved = (stats, row_gradients)
    options = planned.arguments(inputs)
    if whole and not shape.full:
        options["FLAGS"] = planned.flags._replace(ragged=True)  # a single loop for one or two tiles
    batch, heads = q.shape[:2]
    with torch.cuda.device_of(q):
        bwd_dq_kernel[(-(-q.shape[2] // shape.block_m) * batch * heads,)](
            q, k, v, out, second, g, dq, dk, dv,
            q.stride(), k.stride(), v.stride(), out.stride(), g.stride(),
            dq.stride(), dk.stride(), dv.stride(), *saved, tiles, **options, SHAPE=shape,
            WHOLE=whole, **chosen,
        )  # fmt: skip
        if not whole:
            tile, chosen = planned.keys
            lists = torch.empty_like(marks, dtype=tiles.dtype)
            bwd_dkdv_kernel[(-(-k.shape[2] // tile.block_n) * batch * k.shape[1],)](
                q, k, v, g, dk, dv,
                q.stride(), k.stride(), v.stride(), g.stride(), dk.stride(), dv.stride(),
                *saved, marks, lists, **options, SHAPE=tile, **chosen,
            )  # fmt: skip
    by_row = row_gradients.view(batch, heads, -1, GRADIENTS.value)
    wanted = zip((2, 3), (want_parameter, want_sink), strict=True)
    return [dq, dk, dv, *(by_row[..., i].sum((0, 2)) for i, want in wanted if want)]


@triton_backward.register_fake
def _(grad: Tensor, *arguments: Any) -> list[Tensor]:
    inputs = OperatorInputs(*arguments[: len(OperatorInputs._fields)]).dense()
    found = map(torch.empty_like, inputs[:3])
    return [*found, *(t.new_empty(t.shape) for t in inputs.learned(arguments[-3:]))]


attend = register("triton", triton_forward, triton_backward, results=1, saved=slice(None))

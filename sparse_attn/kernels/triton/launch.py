"""The two custom operators that call the kernels."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
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
from sparse_attn.kernels.triton.names import Shape
from sparse_attn.kernels.triton.plan import (
    LaunchPlan,
    Options,
    decode_shapes,
    forward_setting,
    needs_moments,
    plan,
    skips,
)
from sparse_attn.kernels.triton.saved import GRADIENTS, POINTWISE, WIDE
from sparse_attn.kernels.triton.settings import Setting


@custom_op(
    "sparse_attn::triton_forward",
    mutates_args=(),
    schema=f"({INPUTS}, bool grad, bool moments) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def triton_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Compute out (B, H, Q, D), a second output, row statistics, lists and marks of live tiles.

    What a mapping does not need is empty.
    """
    *given, grad, moments = arguments
    inputs = OperatorInputs(*given)
    return _complete(inputs, compute(inputs, grad, moments))


@triton_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *given, grad, moments = arguments
    inputs = OperatorInputs(*given)
    tile = forward_setting(inputs, grad)
    return _complete(inputs, _empty_outputs(inputs, grad, moments, tile))


def _complete(inputs: OperatorInputs, outputs: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    return tuple(inputs.query.new_empty(0) if t is None else t for t in outputs)


def compute(
    inputs: OperatorInputs,
    grad: bool,
    moments: bool,
    planned: LaunchPlan | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Compute the outputs of `triton_forward`, the first in `out`; None for what is not needed.

    Args:
        planned: plan of these inputs, if known; they are dense then.
        out: aligned, with the strides of `empty_rows`.
    """
    given = inputs.tensors
    if planned is None:
        inputs = inputs.dense()
        planned = plan(inputs, grad, moments)
    query, key, value = inputs[:3]
    outputs = _empty_outputs(inputs, grad, moments, planned.forward[0], out)
    out, second, stats, tiles, marks = outputs
    assert out is not None
    if planned.split is not None:
        _decode(inputs, planned, out)
        return outputs
    shape, chosen = planned.forward
    programs = -(-query.shape[2] // shape.block_m) * query.shape[0] * query.shape[1]
    arguments = (
        query, key, value, out, out if second is None else second,
        query.stride(), key.stride(), value.stride(), out.stride(),
        out if stats is None else stats, out if tiles is None else tiles,
        out if marks is None else marks,
        *planned.arguments(inputs), planned.map, planned.flags, shape,
    )  # fmt: skip
    with torch.cuda.device_of(query):
        launch(fwd_kernel, programs, arguments, chosen, planned, "forward", given)
    return outputs


def launch(
    kernel: Any,
    programs: int,
    arguments: tuple[Any, ...],
    options: Options,
    planned: LaunchPlan,
    layout: Hashable,
    given: Iterable[Tensor | None],
) -> None:
    """Launch a kernel; kernel[(programs,)](*arguments, **options).

    Triton looks up the compiled kernel by type, divisibility and alignment of every argument, which
    takes several times as long as the launch. Here the plan and `layout` decide all of these but
    the alignment of tensors that others made, `given`; those that we allocate are aligned.
    """
    addresses = 0
    for t in given:
        if t is not None:
            addresses |= t.data_ptr()
    if addresses % 16:
        kernel[(programs,)](*arguments, **options)
        return
    ready = planned.compiled.get(layout)
    if ready is None:
        planned.compiled[layout] = kernel[(programs,)](*arguments, **options)
    else:
        ready[(programs, 1, 1)](*arguments)


def _decode(inputs: OperatorInputs, planned: LaunchPlan, out: Tensor) -> None:
    """Compute `out` of few queries, with the keys split over programs."""
    query, key, value = inputs[:3]
    batch, heads, rows, dim = query.shape
    assert planned.split is not None
    splits, chunk = planned.split
    scores = query.new_empty(batch, heads, rows, key.shape[2], dtype=torch.float32)
    stats = scores.new_empty(batch * heads * rows, WIDE.value)
    parts = scores.new_empty(splits, batch, heads, rows, dim)
    given = inputs.tensors
    computed, stored = decode_shapes(query, key)
    programs = batch * heads
    by_map = planned.map._replace(skip=False), planned.flags._replace(ragged=True)
    arguments = *planned.arguments(inputs), *by_map
    options = {"num_warps": 4, "num_stages": 3}
    with torch.cuda.device_of(query):
        launch(
            decode_scores_kernel, programs * splits,
            (query, key, query.stride(), key.stride(), scores, splits, chunk, *arguments, computed),
            options, planned, "scores", given,
        )  # fmt: skip
        launch(
            decode_statistics_kernel, programs, (scores, stats, *arguments, stored),
            {"num_warps": 4}, planned, "statistics", given,
        )  # fmt: skip
        launch(
            decode_values_kernel, programs * splits,
            (scores, stats, value, value.stride(), parts, splits, chunk, *arguments, computed),
            options, planned, "values", given,
        )  # fmt: skip
    out.copy_(parts.sum(0))


def _empty_outputs(
    inputs: OperatorInputs,
    grad: bool,
    moments: bool,
    tile: Setting | Shape,
    out: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    batch, heads, rows, dim = inputs.query.shape
    if out is None:
        out = empty_rows(inputs.query, batch, heads, rows, dim)
    listed = skips(inputs, grad)
    if not (grad or listed):
        return out, None, None, None, None
    second = stats = tiles = marks = None
    has_second = inputs.family in ("threshold", "projection") or inputs.kernel == "clipped-softmax"
    if grad and has_second and not moments:
        second = torch.empty_like(out)
    if grad:
        numbers = POINTWISE if inputs.family == "pointwise" else WIDE
        stats = out.new_empty(batch * heads * rows, numbers.value, dtype=torch.float32)
    if listed:
        blocks, columns = -(-rows // tile.block_m), -(-inputs.key.shape[2] // tile.block_n)
        short = torch.int16 if max(blocks, columns) < 2**15 else torch.int32
        tiles = out.new_empty(batch * heads, blocks, columns + 1, dtype=short)
        if grad:
            marks = out.new_zeros(batch * heads, columns, blocks, dtype=torch.int8)
    return out, second, stats, tiles, marks


@custom_op(
    "sparse_attn::triton_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {INPUTS}, Tensor out, Tensor second, Tensor stats, "
    f"Tensor tiles, Tensor marks, {WANTED}) -> Tensor[]",
)
def triton_backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    """Compute gradients of query, key and value, and of parameter and sink where wanted."""
    number = len(OperatorInputs._fields)
    return differentiate(grad, OperatorInputs(*arguments[:number]), *arguments[number:])


def differentiate(
    grad: Tensor, inputs: OperatorInputs, out: Tensor, second: Tensor | None, stats: Tensor,
    tiles: Tensor | None, marks: Tensor | None, want_parameter: bool, want_sink: bool, _: bool,
    planned: LaunchPlan | None = None,
) -> list[Tensor]:  # fmt: skip
    """Compute the gradients of `triton_backward`.

    Args:
        planned: plan of the forward pass, if the layout of inputs and outputs is still the same.
    """
    g = rows_dense(grad)
    strides = g.stride(), out.stride()
    layout: tuple[Hashable, ...]
    if planned is None:  # hooks may have changed what was saved
        given = (grad, *inputs.tensors, out, second, stats, tiles, marks)
        inputs = inputs.dense()
        planned = plan(inputs, True, needs_moments(inputs, want_parameter))
        layout = *strides, *(None if t is None else t.dtype for t in given)
    else:
        given = (grad, *inputs.tensors)
        layout = *strides, grad.dtype
    q, k, v = inputs[:3]
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    row_gradients = stats.new_empty(stats.shape[0], GRADIENTS.value)
    shape, chosen, whole = planned.backward
    arguments = planned.arguments(inputs)
    batch, heads, rows, _dim = q.shape
    of_outputs = dq.stride(), dk.stride(), dv.stride()
    with torch.cuda.device_of(q):
        launch(
            bwd_dq_kernel, -(-rows // shape.block_m) * batch * heads,
            (
                q, k, v, out, out if second is None else second, g, dq, dk, dv,
                q.stride(), k.stride(), v.stride(), strides[1], strides[0], *of_outputs,
                stats, row_gradients, out if tiles is None else tiles, *arguments,
                planned.map, planned.backward_flags, shape, whole,
            ),
            chosen, planned, ("queries", layout), given,
        )  # fmt: skip
        if not whole:
            tile, chosen = planned.keys
            lists = None
            if tiles is not None and marks is not None:
                lists = torch.empty_like(marks, dtype=tiles.dtype)
            launch(
                bwd_dkdv_kernel, -(-k.shape[2] // tile.block_n) * batch * k.shape[1],
                (
                    q, k, v, g, dk, dv, q.stride(), k.stride(), v.stride(), strides[0],
                    *of_outputs[1:], stats, row_gradients, out if marks is None else marks,
                    out if lists is None else lists, *arguments, planned.map, planned.flags, tile,
                ),
                chosen, planned, ("keys", layout), given,
            )  # fmt: skip
    found = [dq, dk, dv]
    if want_parameter or want_sink:
        by_row = row_gradients.view(batch, heads, -1, GRADIENTS.value)
        wanted = zip((2, 3), (want_parameter, want_sink), strict=True)
        found += [by_row[..., i].sum((0, 2)) for i, want in wanted if want]
    return found


@triton_backward.register_fake
def _(grad: Tensor, *arguments: Any) -> list[Tensor]:
    inputs = OperatorInputs(*arguments[: len(OperatorInputs._fields)]).dense()
    found = map(torch.empty_like, inputs[:3])
    return [*found, *(t.new_empty(t.shape) for t in inputs.learned(arguments[-3:]))]


attend = register(
    "triton",
    (triton_forward, triton_backward),
    compute,
    differentiate,
    results=1,
    saved=slice(None),
)

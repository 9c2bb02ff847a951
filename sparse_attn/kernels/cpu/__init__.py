"""Attention on the CPU in C++ tiles, without storing queries x keys, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.cpu.kernel_args import FOUND, LONG, KernelArgs, exact
from sparse_attn.kernels.inputs import AttentionInputs, AttentionOutput
from sparse_attn.kernels.operators import (
    INPUTS,
    WANTED,
    OperatorInputs,
    empty_rows,
    register,
    rows_dense,
)
from sparse_attn.kernels.statistics import COLUMNS


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return why these kernels do not support the call, None if they do."""
    if inputs.query.device.type != "cpu":
        return f"the tensors are on {inputs.query.device}, not on the CPU"
    return inputs.kernel_reason or _build_error()


@torch.compiler.assume_constant_result
def _build_error() -> str | None:
    result = build.library()
    return result if isinstance(result, str) else None


def attention(inputs: AttentionInputs) -> AttentionOutput:
    """out = dropout(map(scores)) v, (B, H, Q, Dv), in the memory order (B, Q, H, Dv)."""
    given = inputs.for_operator()
    keep = given.wants_gradients
    # a compiled graph cannot hold tensors whose size depends on the scores
    lists = keep and not torch.compiler.is_compiling()
    int8_keys = None if keep or inputs.query.shape[2] > 1 else inputs.int8_keys
    out, statistics = _call(
        given, inputs.special_keys, int8_keys, inputs.need_statistics, keep, lists
    )
    rows = statistics.detach() if inputs.need_statistics else None
    # the output of a scaled query is in float32
    return AttentionOutput(out.to(inputs.query.dtype), statistics=rows)


@custom_op(
    "sparse_attn::cpu_forward",
    mutates_args=(),
    device_types="cpu",
    schema=f"({INPUTS}, Tensor? special_keys, Tensor? int8_keys, bool need_statistics, bool keep, "
    "bool lists) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Compute `_compute` of flat arguments."""
    inputs, more = OperatorInputs(*arguments[:-5]), arguments[-5:]
    out, statistics, *kept = _compute(inputs, *more)
    return out, statistics, *(kept or _nothing_kept(out))


def _compute(
    inputs: OperatorInputs, special_keys: Tensor | None, int8_keys: Tensor | None,
    need_statistics: bool, keep: bool, lists: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute out (B, H, Q, Dv), dense by query, row statistics, and what backward needs.

    Backward needs nothing without `keep`. With it these are `Found` of each row, columns and scores
    of the supports with `lists`, and for long rows a copy of `out`, which the caller may change.
    Results that are not requested are empty.
    """
    args = KernelArgs(inputs)
    out = _empty_out(inputs, args.tensors[0])
    statistics = args.measure(special_keys) if need_statistics else out.new_empty(0)
    kept: tuple[Tensor, ...] = ()
    if not (args.keys and out.numel()):
        out.zero_()
        if keep:
            kept = _empty_kept(inputs, out, 0)
    else:
        args.point("out", out)
        if int8_keys is not None:
            args.point("int8_keys", int8_keys)
        if keep:
            result = _empty_result(inputs, out)
            if result.numel():
                args.point("result", result)
            kept = *args.find(lists), result
        else:
            args.run(backward=False)
    return out.to(inputs.query.dtype), statistics, *kept


def list_weights(inputs: OperatorInputs, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return number (B, H, Q), columns and values of each row's weights above `least`, and NaN."""
    args, rows = KernelArgs(inputs), inputs.query.shape[:3]
    if not (args.keys and rows.numel()):
        counts, columns, weights = _nothing_kept(args.tensors[0])[:3]
        return counts.new_zeros(rows), columns, weights
    return args.list_weights(least)


def _nothing_kept(like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found, columns = (like.new_empty(0, dtype=kind) for kind in (torch.int64, torch.int32))
    return found, columns, like.new_empty(0), like.new_empty(0)


def _empty_kept(inputs: OperatorInputs, like: Tensor, entries: Any) -> tuple[Tensor, ...]:
    found = like.new_empty((*inputs.query.shape[:3], FOUND), dtype=torch.int64)
    columns = like.new_empty(entries, dtype=torch.int32)
    return found, columns, like.new_empty(entries), _empty_result(inputs, like)


@_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *given, _, _, need_statistics, keep, lists = arguments
    inputs = OperatorInputs(*given)
    query = exact(inputs.query)
    rows = (*inputs.query.shape[:3], len(COLUMNS)) if need_statistics else (0,)
    kept: tuple[Tensor, ...] = _nothing_kept(query)
    if keep:
        entries = torch.library.get_ctx().new_dynamic_size() if lists else 0
        kept = _empty_kept(inputs, query, entries)
    return _empty_out(inputs, inputs.query), query.new_empty(rows), *kept


def _empty_result(inputs: OperatorInputs, like: Tensor) -> Tensor:
    """Allocate the copy of `out` that backward needs of long rows."""
    return _empty_out(inputs, like) if inputs.key.shape[2] > LONG else like.new_empty(0)


def _empty_out(inputs: OperatorInputs, like: Tensor) -> Tensor:
    return empty_rows(like, *inputs.query.shape[:3], inputs.value.shape[3])


@custom_op(
    "sparse_attn::cpu_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor grad, {INPUTS}, Tensor found, Tensor columns, Tensor scores, Tensor result, "
    f"{WANTED}) -> Tensor[]",
)
def _backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    """Compute `_differentiate` of flat arguments."""
    given = len(OperatorInputs._fields)
    return _differentiate(grad, OperatorInputs(*arguments[:given]), *arguments[given:])


def _differentiate(
    grad: Tensor, inputs: OperatorInputs, found: Tensor, columns: Tensor, scores: Tensor,
    result: Tensor, want_parameter: bool, want_sink: bool, want_bias: bool,
) -> list[Tensor]:  # fmt: skip
    """Compute gradients of query, key and value, and of parameter, sink and bias where wanted."""
    args = KernelArgs(inputs)
    query, key, value = args.tensors
    leaves = [*inputs[:3], *inputs.learned((want_parameter, want_sink, want_bias))]
    by_bias = [query.new_zeros(leaves[-1].shape)] if want_bias else []
    if not (grad.numel() and args.keys):
        by_head = query.new_zeros(1, *query.shape[:2], 1, 2)
        results = [torch.zeros_like(t) for t in (query, key, value)]
    else:
        args.want_parameter = want_parameter
        args.point("out", rows_dense(grad.to(query.dtype)))
        if want_bias:
            args.add_up(*by_bias)
        if found.numel():
            args.remember(found, columns, scores, result)
        by_query = torch.empty_like(query)
        args.point("grad_query", by_query)
        by_key, by_value = args.by_segment("grad_key", key), args.by_segment("grad_value", value)
        # gradients of parameter and sink
        by_head = query.new_empty(args.batch, args.heads, 1, 2)
        by_head = args.by_segment("grad_parameter", by_head)
        args.run(backward=True)
        results = [by_query, _joined(by_key, key), _joined(by_value, value)]
    wanted = want_parameter, want_sink
    results += [by_head[..., i].sum((0, 1, 3)) for i, want in enumerate(wanted) if want]
    return [t.to(leaf.dtype) for t, leaf in zip([*results, *by_bias], leaves, strict=True)]


def _joined(parts: Tensor, like: Tensor) -> Tensor:
    """Sum over segments, in the memory order of `like`."""
    return parts[0] if len(parts) == 1 else torch.sum(parts, 0, out=torch.empty_like(like))


@_backward.register_fake
def _(grad: Tensor, *arguments: Any) -> list[Tensor]:
    inputs = OperatorInputs(*arguments[: len(OperatorInputs._fields)])
    found = [torch.empty_like(rows_dense(exact(t)), dtype=t.dtype) for t in inputs[:3]]
    return [*found, *(t.new_empty(t.shape) for t in inputs.learned(arguments[-3:]))]


_call = register(
    "cpu", (_forward, _backward), _compute, _differentiate, results=2, saved=slice(2, None)
)

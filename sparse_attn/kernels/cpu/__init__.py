"""Attention on the CPU in C++ tiles, without storing queries x keys, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.cpu.kernel_args import FOUND, KernelArgs, exact
from sparse_attn.kernels.inputs import AttentionInputs, AttentionOutput
from sparse_attn.kernels.operators import INPUTS, OperatorInputs, register, rows_dense
from sparse_attn.kernels.statistics import COLUMNS


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Why these kernels do not support the call, None if they do."""
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
    # a compiled graph cannot hold tensors whose size depends on the scores
    keep = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    keep = keep and any(isinstance(t, Tensor) and t.requires_grad for t in given)
    out, statistics, *_ = _call(*given, inputs.special_keys, inputs.need_statistics, keep)
    rows = statistics.detach() if inputs.need_statistics else None
    # a scaled query is in float32
    return AttentionOutput(out.transpose(1, 2).to(inputs.query.dtype), statistics=rows)


@custom_op(
    "sparse_attn::cpu_forward",
    mutates_args=(),
    device_types="cpu",
    schema=f"({INPUTS}, Tensor? special_keys, bool need_statistics, bool keep) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    """out (B, Q, H, Dv), contiguous, the statistics of the rows, and with `keep` their support.

    Those not needed are empty.
    """
    *given, special_keys, need_statistics, keep = arguments
    inputs = OperatorInputs(*given)
    args = KernelArgs(inputs)
    out = args.tensors[0].new_empty(_out_shape(inputs))
    statistics = args.measure(special_keys) if need_statistics else out.new_empty(0)
    support = _nothing_kept(out)
    if not args.keys:
        out.zero_()
    elif out.numel():
        args.point("out", out.transpose(1, 2))
        if keep:
            support = args.find()
        else:
            args.run(backward=False)
    return out.to(inputs.query.dtype), statistics, *support


def _nothing_kept(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found, columns = (like.new_empty(0, dtype=kind) for kind in (torch.int64, torch.int32))
    return found, columns, like.new_empty(0)


@_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *given, _, need_statistics, keep = arguments
    inputs = OperatorInputs(*given)
    query = exact(inputs.query)
    rows = (*inputs.query.shape[:3], len(COLUMNS)) if need_statistics else (0,)
    support = _nothing_kept(query)
    if keep:
        entries = torch.library.get_ctx().new_dynamic_size()
        found = query.new_empty((*inputs.query.shape[:3], FOUND), dtype=torch.int64)
        columns = query.new_empty(entries, dtype=torch.int32)
        support = found, columns, query.new_empty(entries)
    return inputs.query.new_empty(_out_shape(inputs)), query.new_empty(rows), *support


def _out_shape(inputs: OperatorInputs) -> tuple[int, int, int, int]:
    batch, heads, queries, _ = inputs.query.shape
    return batch, queries, heads, inputs.value.shape[3]


@custom_op(
    "sparse_attn::cpu_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor grad, {INPUTS}, Tensor found, Tensor columns, Tensor scores, "
    "bool want_parameter, bool want_bias) -> Tensor[]",
)
def _backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients of query, key, value, parameter, sink and bias; those not there are empty."""
    *given, found, columns, scores, want_parameter, want_bias = arguments
    inputs = OperatorInputs(*given)
    args = KernelArgs(inputs)
    query, key, value = args.tensors
    by_bias = query.new_zeros(_bias_shape(inputs, want_bias))
    if not (grad.numel() and args.keys):
        by_head = query.new_zeros(1, *query.shape[:2], 1, 2)
        results = [torch.zeros_like(t) for t in (query, key, value)]
    else:
        args.want_parameter = want_parameter
        args.point("out", rows_dense(grad.to(query.dtype).transpose(1, 2)))
        if want_bias:
            args.add_up(by_bias)
        if found.numel():
            args.remember(found, columns, scores)
        by_query = torch.empty_like(query)
        args.point("grad_query", by_query)
        by_key, by_value = args.by_segment("grad_key", key), args.by_segment("grad_value", value)
        # of the parameter, and of the sink
        by_head = query.new_empty(args.batch, args.heads, 1, 2)
        by_head = args.by_segment("grad_parameter", by_head)
        args.run(backward=True)
        results = [by_query, _joined(by_key, key), _joined(by_value, value)]
    results = [t.to(wanted.dtype) for t, wanted in zip(results, inputs[:3], strict=True)]
    sums = _head_sums(inputs, want_parameter)
    for i, total in enumerate(sums):
        if total.numel():
            torch.sum(by_head[..., i], (0, 1, 3), out=total)
    return [*results, *sums, by_bias]


def _head_sums(inputs: OperatorInputs, want_parameter: bool) -> list[Tensor]:
    """Buffers of the gradients of the parameter and the sink, (H,), or (0,) where not wanted."""
    wanted = want_parameter, inputs.sink is not None
    return [inputs.parameter.new_empty(len(inputs.parameter) if want else 0) for want in wanted]


def _bias_shape(inputs: OperatorInputs, wanted: bool) -> tuple[int, ...]:
    return inputs.bias.shape if inputs.bias is not None and wanted else (0,)


def _joined(parts: Tensor, like: Tensor) -> Tensor:
    """The sum over segments, in the memory order of `like`."""
    return parts[0] if len(parts) == 1 else torch.sum(parts, 0, out=torch.empty_like(like))


@_backward.register_fake
def _(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *given, _, _, _, want_parameter, want_bias = arguments
    inputs = OperatorInputs(*given)
    found = [torch.empty_like(rows_dense(exact(t)), dtype=t.dtype) for t in inputs[:3]]
    by_bias = exact(inputs.query).new_empty(_bias_shape(inputs, want_bias))
    return [*found, *_head_sums(inputs, want_parameter), by_bias]


_call = register("cpu", _forward, _backward, saved=slice(2, None))

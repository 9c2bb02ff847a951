"""Attention on the CPU in C++ tiles; nothing of size queries x keys is kept, backward included."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparse_attn.kernels import flops
from sparse_attn.kernels.call import Call, no_second_derivative, rows_dense
from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.cpu.job import Job, computed
from sparse_attn.kernels.statistics import COLUMNS

POINTWISE = ("softmax", "sigsoftmax", "taylor-softmax", "spherical-softmax", "softmax-abs")
NORMALIZED = ("normalized-relu", "normalized-sigmoid")
SPARSE = ("t-softmax", "r-softmax", "sparsemax", "sparsegen", "sparsecone", "sparsehourglass")
NAMES = frozenset((*POINTWISE, *NORMALIZED, *SPARSE, "entmax"))


def refusal(call: Call) -> str | None:
    """Why these kernels cannot do the call, None if they can."""
    if call.query.device.type != "cpu":
        return f"the tensors are on {call.query.device}, not on the CPU"
    kernel = call.mapping.spec.kernel
    if kernel is None or kernel.name not in NAMES:
        return f"there is no kernel for {call.mapping.name}"
    return _build_refusal()


@torch.compiler.assume_constant_result
def _build_refusal() -> str | None:
    result = build.library()
    return result if isinstance(result, str) else None


def attention(call: Call) -> Tensor:
    """out = dropout(map(scores)) v, (B, H, Q, Dv), in the memory order (B, Q, H, Dv)."""
    return _run(call, None, measured=False)[0]


def attention_and_statistics(call: Call, special: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output and the statistics of every row, (B, H, Q, COLUMNS); special: (B, K), bool."""
    return _run(call, special, measured=True)


def _run(call: Call, special: Tensor | None, measured: bool) -> tuple[Tensor, Tensor]:
    kernel = call.mapping.spec.kernel
    assert kernel is not None
    out, statistics = _forward(
        call.query,
        call.key,
        call.value,
        call.mask,
        call.key_lengths,
        call.bias,
        call.parameter(),
        call.seed(),
        kernel.name,
        call.scale,
        call.softcap or 0.0,
        call.dropout,
        call.causal,
        call.span,
        special,
        measured,
    )
    return out.transpose(1, 2), statistics.detach()


@torch.library.custom_op("sparse_attn::cpu_forward", mutates_args=(), device_types="cpu")
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    parameter: Tensor,
    seed: Tensor | None,
    kernel: str,
    scale: float,
    softcap: float,
    dropout: float,
    causal: bool,
    window: int,
    special: Tensor | None,
    measured: bool,
) -> tuple[Tensor, Tensor]:
    """(B, Q, H, Dv), contiguous, and the statistics of the rows, empty if not wanted."""
    job = Job(query, key, value, mask, lengths, bias, parameter, seed)
    job.options(kernel, scale, softcap, dropout, causal, window)
    out = job.query.new_empty(_out_shape(query, value))
    statistics = job.measure(special) if measured else job.query.new_empty(0)
    if not key.shape[2]:
        out.zero_()
    elif out.numel():
        job.put("out", out.transpose(1, 2))
        job.run(backward=False)
    return out.to(query.dtype), statistics


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    rows = (*query.shape[:3], len(COLUMNS)) if args[-1] else (0,)
    return query.new_empty(_out_shape(query, value)), computed(query).new_empty(rows)


def _out_shape(query: Tensor, value: Tensor) -> tuple[int, int, int, int]:
    return query.shape[0], query.shape[2], query.shape[1], value.shape[3]


@torch.library.custom_op("sparse_attn::cpu_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    parameter: Tensor,
    seed: Tensor | None,
    kernel: str,
    scale: float,
    softcap: float,
    dropout: float,
    causal: bool,
    window: int,
    want_bias: bool,
    want_parameter: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, bias (empty if not wanted) and parameter."""
    job = Job(query, key, value, mask, lengths, bias, parameter, seed)
    job.options(kernel, scale, softcap, dropout, causal, window)
    by_bias = _bias_gradient(job.query, bias, want_bias).zero_()
    by_query, by_key, by_value = (torch.empty_like(t) for t in (job.query, job.key, job.value))
    if not (grad.numel() and key.shape[2]):
        for gradient in (by_query, by_key, by_value):
            gradient.zero_()
        by_query, by_key, by_value = _cast((by_query, by_key, by_value), query.dtype)
        return by_query, by_key, by_value, by_bias, torch.zeros_like(parameter)
    job.put("out", rows_dense(grad.to(job.query.dtype).transpose(1, 2)))
    job.put("grad_query", by_query)
    parts = job.split(by_bias if want_bias else None)
    by_key, key_parts = job.partial("grad_key", by_key, parts)
    by_value, value_parts = job.partial("grad_value", by_value, parts)
    by_parameter = job.query.new_empty(*query.shape[:2], 1, parts)
    job.put("grad_parameter", by_parameter)
    job.arguments.want_parameter = want_parameter
    job.run(backward=True)
    if parts > 1:
        torch.sum(key_parts, 0, out=by_key)
        torch.sum(value_parts, 0, out=by_value)
    by_query, by_key, by_value = _cast((by_query, by_key, by_value), query.dtype)
    by_parameter = by_parameter.sum((0, 2, 3)).to(parameter.dtype)
    return by_query, by_key, by_value, by_bias, by_parameter


@_backward.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    parameter: Tensor,
    *args: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    by_bias = _bias_gradient(computed(query), bias, args[-2])
    by_query, by_key, by_value = (
        torch.empty_like(rows_dense(computed(t)), dtype=query.dtype) for t in (query, key, value)
    )
    return by_query, by_key, by_value, by_bias, torch.empty_like(parameter)


def _bias_gradient(query: Tensor, bias: Tensor | None, wanted: bool) -> Tensor:
    return query.new_empty(bias.shape if bias is not None and wanted else (0,))


def _cast(grads: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(gradient.to(dtype) for gradient in grads)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.options = inputs[8:-2]


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    bias = tensors[5]
    want_bias, want_parameter = ctx.needs_input_grad[5], ctx.needs_input_grad[6]
    by_query, by_key, by_value, by_bias, by_parameter = _backward(
        grad, *tensors, *ctx.options, want_bias, want_parameter
    )
    by_bias = by_bias.to(bias.dtype) if want_bias else None
    by_parameter = by_parameter if want_parameter else None
    none = (None,) * (len(ctx.options) + 3)
    return by_query, by_key, by_value, None, None, by_bias, by_parameter, *none


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(no_second_derivative)
flops.register(torch.ops.sparse_attn.cpu_forward, torch.ops.sparse_attn.cpu_backward)

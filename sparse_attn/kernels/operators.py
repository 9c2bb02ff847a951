"""Shared by the custom operators of the fused implementations: inputs, gradients, FLOPs."""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor
from torch.library import CustomOpDef
from torch.utils.flop_counter import register_flop_formula


class OperatorInputs(NamedTuple):
    """One call of attention in types that an operator accepts, in the order of its schema.

    The parameter of the mapping is a tensor, so that a schedule does not recompile a graph.
    """

    query: Tensor  # [B, H, Q, D]
    key: Tensor  # [B, Hkv, K, D]
    value: Tensor  # [B, Hkv, K, Dv]
    parameter: Tensor  # [H], of the mapping
    sink: Tensor | None  # [H], scores of the virtual keys
    mask: Tensor | None
    key_lengths: Tensor | None
    bias: Tensor | None
    seed: Tensor | None  # [1] int64, of the dropped weights; None without dropout
    kernel: str
    family: str
    skips: bool
    scale: float
    softcap: float  # 0 for none
    dropout: float
    causal: bool
    window: int  # 0 for none

    def dense(self) -> OperatorInputs:
        """With dense rows of query, key and value."""
        query, key, value = map(rows_dense, self[:3])
        return self._replace(query=query, key=key, value=value)


_TYPES: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", int: "SymInt"}
_TYPES |= {kind: kind.__name__ for kind in (str, bool, float)}
INPUTS = ", ".join(f"{_TYPES[kind]} {n}" for n, kind in get_type_hints(OperatorInputs).items())
_TENSORS = OperatorInputs._fields.index("kernel")  # tensors come first
_PARAMETER, _SINK, _BIAS = map(OperatorInputs._fields.index, ("parameter", "sink", "bias"))


def register(name: str, forward: CustomOpDef, backward: CustomOpDef, saved: slice) -> None:
    """Give the operators `<name>_forward` and `<name>_backward` gradients and FLOP counts.

    forward: (*inputs, ...) -> (out, ...); backward: (grad, *inputs, *outputs[saved],
    want_parameter, want_bias) -> gradients of query, key, value, parameter, sink and bias, the
    last two empty if there is none.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:_TENSORS], *output[saved])
        ctx.options = inputs[_TENSORS : len(OperatorInputs._fields)]

    def differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # readable only once under checkpointing
        inputs, outputs = tensors[:_TENSORS], tensors[_TENSORS:]
        wanted = ctx.needs_input_grad[_PARAMETER], ctx.needs_input_grad[_BIAS]
        found = backward(grad, *inputs, *ctx.options, *outputs, *wanted)
        gradients: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        gradients[:_PARAMETER] = found[:_PARAMETER]
        if wanted[0]:
            gradients[_PARAMETER] = found[_PARAMETER]
        if ctx.needs_input_grad[_SINK]:
            gradients[_SINK] = found[_SINK]
        if wanted[1]:
            gradients[_BIAS] = found[-1].to(inputs[_BIAS].dtype)
        return tuple(gradients)

    forward.register_autograd(differentiate, setup_context=save)
    backward.register_autograd(no_second_derivative)
    register_flop_formula(getattr(torch.ops.sparse_attn, f"{name}_forward"))(_forward_flops)
    register_flop_formula(getattr(torch.ops.sparse_attn, f"{name}_backward"))(_backward_flops)


def sink_like(inputs: OperatorInputs) -> Tensor:
    """The shape and dtype of the gradient of the sink: empty if there is none."""
    return inputs.parameter.new_empty(0) if inputs.sink is None else inputs.sink


def no_second_derivative(*_: object) -> None:
    """Raise for the second derivative of a fused implementation.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "the fused kernels are differentiable once; use kernels.attention(..., impl='reference'), "
        "or output_attentions=True in a patched model"
    )


def _forward_flops(
    query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any
) -> int:
    """2 B H Q K (D + Dv): q k^T and p v, every score, masked or not, as for SDPA."""
    batch, heads, queries, dim = query
    return 2 * batch * heads * queries * key[2] * (dim + value[3])


def _backward_flops(
    grad: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any
) -> int:
    """2 B H Q K (3 D + 2 Dv): q k^T again, and the gradients of p, value, query and key."""
    batch, heads, queries, dim = query
    return 2 * batch * heads * queries * key[2] * (3 * dim + 2 * value[3])


def rows_dense(tensor: Tensor) -> Tensor:
    """The tensor, copied only where its last dimension is strided."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()

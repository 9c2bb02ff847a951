"""Shared by the custom operators of the fused implementations: inputs, gradients, FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor
from torch.library import CustomOpDef
from torch.nn import Parameter
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
    cu_seqlens: Tensor | None  # [sequences + 1], boundaries of those packed into a batch of 1
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


def register(
    name: str, forward: CustomOpDef, backward: CustomOpDef, saved: slice
) -> Callable[..., tuple[Tensor, ...]]:
    """Give the operators `<name>_forward` and `<name>_backward` gradients and FLOP counts.

    forward: (*inputs, ...) -> (out, ...); backward: (grad, *inputs, *outputs[saved],
    want_parameter, want_bias) -> gradients of query, key, value, parameter, sink and bias, the
    last three empty where not wanted.

    Returns:
        `forward`, past the dispatcher where that makes no difference: it would take longer than a
        small call.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:_TENSORS], *output[saved])
        ctx.options = inputs[_TENSORS : len(OperatorInputs._fields)]

    def differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        if grad is None:  # undefined, and so are these
            return tuple(gradients)
        tensors = ctx.saved_tensors  # readable only once under checkpointing
        inputs, outputs = tensors[:_TENSORS], tensors[_TENSORS:]
        wanted = ctx.needs_input_grad[_PARAMETER], ctx.needs_input_grad[_BIAS]
        # a second derivative must come to the operator, which has none
        observed = torch.is_grad_enabled() or is_observed((grad, *tensors))
        run = backward if observed else backward._init_fn
        found = run(grad, *inputs, *ctx.options, *outputs, *wanted)
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

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
            output: tuple[Tensor, ...] = forward._init_fn(*arguments)
            ctx.mark_non_differentiable(*output[1:])
            ctx.set_materialize_grads(False)
            save(ctx, arguments, output)
            return output

        backward = staticmethod(differentiate)

    def call(*arguments: Any) -> tuple[Tensor, ...]:
        tensors = arguments[:_TENSORS]
        if is_observed(tensors):
            return forward(*arguments)
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            return Direct.apply(*arguments)
        return forward._init_fn(*arguments)

    return call


_PLAIN = reduce(
    or_,
    (
        torch._C.DispatchKeySet(torch._C._dispatch_key_parse(key))
        for key in ("CPU", "AutogradCPU", "AutocastCPU", "ADInplaceOrView", "BackendSelect")
    ),
)


def is_observed(tensors: Iterable[Tensor | None]) -> bool:
    """Whether a call of an operator would come to more than autograd and the CPU's implementation.

    To a compiler, a mode, a transform, a trace, a profiler, a subclass, or what a lazily negated or
    zero tensor needs.
    """
    if torch.compiler.is_compiling():
        return True
    given = [t for t in tensors if t is not None]
    keys = _PLAIN | torch._C._dispatch_tls_local_include_set()
    keys = reduce(or_, (torch._C._dispatch_keys(t) for t in given), keys)
    return (
        keys.raw_repr() != _PLAIN.raw_repr()
        or torch._C._len_torch_function_stack() > 0
        or torch.autograd._profiler_enabled()
        or any(type(t) not in (Tensor, Parameter) for t in given)
    )


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

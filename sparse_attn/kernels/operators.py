"""Inputs, gradients and FLOP counts of the custom operators of the fused implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor
from torch.library import CustomOpDef
from torch.nn import Parameter
from torch.utils.flop_counter import register_flop_formula


class OperatorInputs(NamedTuple):
    """Arguments of an attention operator, in the order of its schema.

    The parameter of the mapping is a tensor, so that a schedule does not recompile a graph.
    """

    query: Tensor  # [B, H, Q, D]
    key: Tensor  # [B, Hkv, K, D]
    value: Tensor  # [B, Hkv, K, Dv]
    parameter: Tensor  # [H], parameter of the mapping
    sink: Tensor | None  # [H], scores of the virtual keys
    bias: Tensor | None
    mask: Tensor | None
    key_lengths: Tensor | None
    cu_seqlens: Tensor | None  # [sequences + 1], boundaries of sequences packed into a batch of 1
    seed: Tensor | None  # [1] int64, seed of dropout; None without
    kernel: str
    family: str
    skips: bool
    scale: float
    softcap: float  # 0 for none
    dropout: float
    causal: bool
    window: int  # 0 for none

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors, which come first."""
        return self[:TENSORS]  # type: ignore[return-value]

    @property
    def wants_gradients(self) -> bool:
        """Whether autograd will ask for a gradient of this call."""
        if torch.is_grad_enabled():
            for t in self.tensors:
                if t is not None and t.requires_grad:
                    return True
        return False

    def learned(self, wanted: Sequence[bool]) -> list[Tensor]:
        """Return those of parameter, sink and bias whose gradients are wanted."""
        given = zip((self.parameter, self.sink, self.bias), wanted, strict=True)
        return [t for t, want in given if want and t is not None]

    def dense(self) -> OperatorInputs:
        """Make the rows of query, key and value dense."""
        given = self[:3]
        query, key, value = map(rows_dense, given)
        if query is given[0] and key is given[1] and value is given[2]:
            return self
        return self._replace(query=query, key=key, value=value)


_TYPES: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", int: "SymInt"}
_TYPES |= {kind: kind.__name__ for kind in (str, bool, float)}
INPUTS = ", ".join(f"{_TYPES[kind]} {n}" for n, kind in get_type_hints(OperatorInputs).items())
TENSORS = OperatorInputs._fields.index("kernel")  # tensors come first
_LEAVES = OperatorInputs._fields.index("mask")  # and tensors with gradients before the others
_FIELDS = len(OperatorInputs._fields)
WANTED = "bool want_parameter, bool want_sink, bool want_bias"
_LIBRARY = torch.library.Library("sparse_attn", "IMPL")  # holds what it registers


def register(
    name: str,
    operators: tuple[CustomOpDef, CustomOpDef],
    compute: Callable[..., tuple[Tensor | None, ...]],
    differentiate: Callable[..., list[Tensor]],
    results: int,
    saved: slice,
) -> Callable[..., tuple[Any, ...]]:
    """Give the operators `<name>_forward` and `<name>_backward` gradients and FLOP counts.

    The operators take and return flat tensors, for graphs. The functions are what they compute:
    compute: (inputs, *more) -> (out, ...); differentiate: (grad, inputs, *outputs[saved], *wanted)
    -> gradients of query, key, value, and of parameter, sink and bias where wanted.

    Returns:
        A function (inputs, *more) that returns the first `results` outputs. If nothing observes the
        call, it goes past the dispatcher, which takes longer than a layer.
    """
    forward, backward = operators

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        ctx.save_for_backward(*inputs[:TENSORS], *output[saved])
        ctx.options = inputs[TENSORS:_FIELDS]

    def gradients(
        ctx: Any, grad: Tensor | None, *_: Any, direct: bool = False
    ) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad
        if grad is None:  # an undefined gradient gives undefined gradients
            return (None,) * len(needed)
        tensors = ctx.saved_tensors  # can be read only once under checkpointing
        wanted = needed[3:_LEAVES]
        given = *tensors[:TENSORS], *ctx.options
        if direct:
            found = differentiate(grad, OperatorInputs._make(given), *tensors[TENSORS:], *wanted)
        else:
            found = backward(grad, *given, *tensors[TENSORS:], *wanted)
        rest = iter(found[3:])
        by_leaf = (next(rest) if want else None for want in wanted)
        return (*found[:3], *by_leaf, *(None,) * (len(needed) - _LEAVES))

    forward.register_autograd(gradients, setup_context=save)
    backward.register_autograd(no_second_derivative)
    # for torch.func.vmap, and for `is_grads_batched`, which has a separate vmap
    backward.register_vmap(no_batched_gradients)
    _LIBRARY.impl(f"{name}_backward", no_batched_gradients, "Batched")
    for pass_, formula in (("forward", _forward_flops), ("backward", _backward_flops)):
        operator = getattr(torch.ops.sparse_attn, f"{name}_{pass_}")
        register_flop_formula(operator, get_raw=True)(formula)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
            inputs, *more = arguments[_LEAVES]  # one argument, which is faster than many
            output = compute(inputs, *more)
            ctx.set_materialize_grads(False)
            save(ctx, inputs, output)
            if results > 1:
                ctx.mark_non_differentiable(*output[1:results])
            return output[:results]

        @staticmethod
        def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
            # a second derivative must reach the operator, which raises
            observed = torch.is_grad_enabled() or is_observed((grad,))
            return gradients(ctx, grad, direct=not observed)

    # Function.apply only adds support for transforms, which `is_observed` excludes
    apply = super(torch.autograd.Function, Direct).apply

    def attend(inputs: OperatorInputs, *more: Any) -> tuple[Any, ...]:
        if is_observed(inputs.tensors):
            return forward(*inputs, *more)[:results]
        if inputs.wants_gradients:
            return apply(*inputs[:_LEAVES], (inputs, *more))
        return compute(inputs, *more)[:results]

    return attend


# private: what torch would do in a call has no public name, here and in `is_observed`
_KEYS = [f"{kind}{on}" for kind in ("", "Autograd", "Autocast") for on in ("CPU", "CUDA")]
_PLAIN = reduce(
    or_,
    (
        torch._C.DispatchKeySet(torch._C._dispatch_key_parse(key))
        for key in (*_KEYS, "ADInplaceOrView", "BackendSelect")
    ),
)
_OTHERS = ~_PLAIN.raw_repr()


def is_observed(tensors: Iterable[Tensor | None]) -> bool:
    """Whether something besides autograd and the implementation would see an operator's call.

    Observers are a compiler, a mode, a transform, a trace, a profiler, a subclass, or the handling
    of lazily negated or zero tensors.
    """
    if (
        # private: torch cannot be asked publicly who observes a call
        torch.compiler.is_compiling()
        or torch._C._dispatch_tls_local_include_set().raw_repr() & _OTHERS
        or torch._C._len_torch_function_stack() > 0
        or torch.autograd._profiler_enabled()
    ):
        return True
    for t in tensors:
        if t is None:
            continue
        # private: a tensor has no public keys of the dispatcher
        if type(t) not in (Tensor, Parameter) or torch._C._dispatch_keys(t).raw_repr() & _OTHERS:
            return True
    return False


def has_hooks() -> bool:
    """Whether hooks get what autograd saves, such as those of checkpointing without reentrance."""
    # private: torch cannot be asked publicly for hooks of saved tensors
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


REMEDY = (
    "use kernels.attention(..., impl='reference'), or give each mapping of a patched model a "
    "forward hook, such as lambda *_: None"
)


def no_second_derivative(*_: object) -> None:
    """Raise for a second derivative of a fused implementation.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"the fused kernels are differentiable once; {REMEDY}")


def no_batched_gradients(*_: object) -> None:
    """Raise for several gradients at once of a fused implementation.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "the fused kernels take one gradient at a time, so that is_grads_batched=True and "
        f"vectorize=True have no rule; {REMEDY}"
    )


def _forward_flops(*arguments: Any, **_: Any) -> int:
    """2 (D + Dv) for each score: q k^T and p v."""
    inputs = OperatorInputs(*arguments[: len(OperatorInputs._fields)])
    return 2 * _count_scores(inputs) * (inputs.query.shape[3] + inputs.value.shape[3])


def _backward_flops(grad: Tensor, *arguments: Any, **_: Any) -> int:
    """2 (3 D + 2 Dv) for each score: q k^T again, gradients of p, value, query and key."""
    inputs = OperatorInputs(*arguments[: len(OperatorInputs._fields)])
    return 2 * _count_scores(inputs) * (3 * inputs.query.shape[3] + 2 * inputs.value.shape[3])


def _count_scores(inputs: OperatorInputs) -> int:
    """Count the scores, masked or not, as SDPA does; for packed sequences within each sequence."""
    batch, heads, queries, _ = inputs.query.shape
    ends = inputs.cu_seqlens
    if type(ends) is not Tensor or ends.is_meta:  # unknown lengths
        return batch * heads * queries * inputs.key.shape[2]
    return heads * int(ends.long().diff().square().sum())


def empty_rows(like: Tensor, *shape: int) -> Tensor:
    """Allocate (B, H, N, D) in the memory order (B, N, H, D) that Transformers expects."""
    _, heads, length, dim = shape
    # not a view, because autograd would refuse in-place changes
    return like.new_empty_strided(shape, (length * heads * dim, dim, heads * dim, 1))


def rows_dense(tensor: Tensor) -> Tensor:
    """Return the tensor, copied only if its last dimension is strided."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()

"""Calls of a layout that has run before, without the checks that it passed then.

In training of BERT's size the host is slower than the GPU, and these checks are much of its work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sparse_attn.kernels.by_head import constant, theta
from sparse_attn.kernels.dropout import draw_seed
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.operators import TENSORS, OperatorInputs, has_hooks, is_observed
from sparse_attn.kernels.triton.launch import compute, differentiate, triton_backward
from sparse_attn.kernels.triton.plan import MOST_PLANS, LaunchPlan, plan, product_precision
from sparse_attn.mappings import Mapping, get_spec
from sparse_attn.mappings.specs import Kernel

FIXED_ALPHA = {
    1.0: get_spec("softmax").kernel,
    1.5: Kernel("entmax-1.5", "projection", "alpha", skips=True),  # squares for powers
    2.0: get_spec("sparsemax").kernel,
}


class Ready(NamedTuple):
    """Results of the checks and of the plan of a layout."""

    kernel: Kernel  # held, because its id stands for it in the layout
    planned: LaunchPlan
    moments: bool


_READY: dict[tuple[Any, ...], Ready] = {}


def attend_again(
    query: Tensor, key: Tensor, value: Tensor, mapping: Mapping, mask: Tensor | None, causal: bool,
    scaling: float | None, dropout: float, *, queries_first: bool,
) -> Tensor | None:  # fmt: skip
    """out = dropout(map(scores)) v of a layout that `remember` has seen; None for any other.

    Args:
        queries_first: return (B, Q, H, D), as Transformers expects, and not (B, H, Q, D).
    """
    kernel = mapping.spec.kernel if hasattr(mapping, "spec") and query.dim() == 4 else None
    if kernel is None or _cannot_repeat(kernel, mapping):
        return None
    capturing = query.is_cuda and torch.cuda.is_current_stream_capturing()
    # private: torch cannot be asked publicly whether forward mode runs
    if capturing or is_observed((query, key, value, mask)) or forward_ad._current_level >= 0:
        return None
    kernel = chosen_kernel(mapping, kernel)
    enabled = torch.is_grad_enabled()
    # not read before it is needed: checkpointing counts what a pass saves
    learned = bool(
        enabled
        and mapping.learned
        and any(p.requires_grad for p in mapping.parameters(recurse=False))
    )
    grad = learned or (
        enabled and (query.requires_grad or key.requires_grad or value.requires_grad)
    )
    layout = _layout(kernel, query, key, value, mask, causal, scaling, dropout, grad, learned)
    try:
        ready = _READY.get(layout)
    except TypeError:  # an argument such as a list, which the checks name
        return None
    if ready is None or (parameter := _parameter(mapping, kernel, query, learned)) is None:
        return None
    seed = draw_seed(query.device) if dropout else None
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    # faster than by name, in a function that is all about time
    inputs = OperatorInputs._make((
        query, key, value, parameter, None, None, mask, None, None, seed,
        kernel.name, kernel.family, kernel.skips, scale, 0.0, dropout, causal, 0,
    ))  # fmt: skip
    if grad:
        out: Tensor = _apply(query, key, value, parameter, inputs, ready)
        return out if queries_first else out.transpose(1, 2)
    # not a view, which autograd would let nobody change without gradients
    rows = compute(inputs, False, ready.moments, ready.planned)[0]
    assert rows is not None
    return rows.transpose(1, 2) if queries_first else rows


def _parameter(mapping: Mapping, kernel: Kernel, query: Tensor, learned: bool) -> Tensor | None:
    """Return the parameter of each head; None if it is not of the kind that was remembered."""
    name = kernel.parameter
    number = 0.0 if name is None else None if name in mapping.learned else mapping.value(name)
    if isinstance(number, float):
        return constant(number, query)
    parameter = theta(mapping, kernel, query)
    is_known = parameter.requires_grad == learned and not is_observed((parameter,))
    return parameter if is_known else None


class _Attend(torch.autograd.Function):
    """`attend_again` with gradients, returning (B, Q, H, D).

    Autograd then has one node for a call of Transformers, and not one more for the transposition.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parameter: Tensor,
        inputs: OperatorInputs, ready: Ready,
    ) -> Tensor:  # fmt: skip
        batch, heads, length, dim = query.shape
        # not a view, which autograd would let nobody change in place
        out = query.new_empty((batch, length, heads, dim))
        rows = out.transpose(1, 2)
        saved = compute(inputs, True, ready.moments, ready.planned, rows)[1:]
        ctx.set_materialize_grads(False)
        # checkpointing compares what is saved with what the first call has saved; otherwise the
        # output itself is, so that autograd names a change in place
        ctx.hooked = has_hooks()
        ctx.save_for_backward(*inputs.tensors, rows if ctx.hooked else out, *saved)
        ctx.options = inputs[TENSORS:]
        ctx.planned, ctx.layout = ready.planned, _saved_layout(inputs, rows)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:  # an undefined gradient gives undefined gradients
            return (None,) * 6
        tensors = ctx.saved_tensors  # can be read only once under checkpointing
        inputs = OperatorInputs._make((*tensors[:TENSORS], *ctx.options))
        out, second, stats, tiles, marks = tensors[TENSORS:]
        if not ctx.hooked:
            out = out.transpose(1, 2)
        outputs = out, second, stats, tiles, marks
        wanted = ctx.needs_input_grad[3], False, False
        grad = grad.transpose(1, 2)
        if torch.is_grad_enabled() or is_observed((grad,)):
            # a second derivative must reach the operator, which raises
            found = triton_backward(grad, *inputs, *outputs, *wanted)
        else:
            # hooks, and `tensor.data = other`, may have changed what was saved
            is_same = _saved_layout(inputs, out) == ctx.layout
            planned = ctx.planned if is_same else None
            found = differentiate(grad, inputs, *outputs, *wanted, planned=planned)
        return (*found[:3], found[3] if wanted[0] else None, None, None)


def _saved_layout(inputs: OperatorInputs, out: Tensor) -> tuple[Any, ...]:
    """Return what the plan of a call depends on and may differ in its backward pass."""
    query, key, value, mask = *inputs[:3], inputs.mask
    return (
        query.shape, key.shape, query.stride(), key.stride(), value.stride(), out.stride(),
        query.dtype, key.dtype, value.dtype, out.dtype,
        None if mask is None else (mask.shape, mask.stride()), product_precision(query.dtype),
    )  # fmt: skip


# Function.apply only adds support for transforms, which `is_observed` excludes
_apply = super(torch.autograd.Function, _Attend).apply


def remember(
    inputs: AttentionInputs, kernel: Kernel, given: OperatorInputs, grad: bool, moments: bool
) -> None:
    """Remember the layout of a computed call, if it is of the kind that `attend_again` takes."""
    more = inputs.bias, inputs.sink, inputs.key_lengths, inputs.cu_seqlens, inputs.softcap
    if (
        any(x is not None for x in (*more, inputs.window))
        or isinstance(inputs.scaling, Tensor)
        or _cannot_repeat(kernel, inputs.mapping)
        or is_observed((*given[:4], inputs.mask))
        or given.dense() is not given
    ):
        return
    if len(_READY) >= MOST_PLANS:
        _READY.clear()
    layout = _layout(
        kernel, *given[:3], inputs.mask, inputs.causal, inputs.scaling, inputs.dropout, grad,
        given.parameter.requires_grad,
    )  # fmt: skip
    _READY[layout] = Ready(kernel, plan(given, grad, moments), moments)


def chosen_kernel(mapping: Mapping, kernel: Kernel) -> Kernel:
    """Return the mapping's kernel; entmax has cheaper ones for fixed alpha 1, 1.5 and 2."""
    # not in a graph, which would be recompiled for each value of a schedule
    moves = torch.compiler.is_compiling() and mapping.was_set
    if kernel.name != "entmax" or moves or "alpha" in mapping.learned:
        return kernel
    alpha = mapping.value("alpha")
    fixed = None if isinstance(alpha, Tensor) else FIXED_ALPHA.get(alpha)
    if fixed is None:
        return kernel
    return replace(fixed, scaled=True) if kernel.scaled else fixed


def _cannot_repeat(kernel: Kernel, mapping: Mapping) -> bool:
    """Whether the values of other parameters decide about the call too."""
    return kernel.scaled or bool(kernel.constants) or mapping.has_sink


def _layout(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *rest: Any
) -> tuple[Any, ...]:
    """Return what the checks and the plan of a call depend on."""
    return (
        id(kernel), query.shape, key.shape, value.shape,
        query.stride(), key.stride(), value.stride(), query.dtype, key.dtype, value.dtype,
        query.device, key.device, value.device,
        None if mask is None else (mask.shape, mask.stride(), mask.dtype, mask.device),
        product_precision(query.dtype), *rest,
    )  # fmt: skip

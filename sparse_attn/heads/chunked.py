"""Losses over a large vocabulary without holding all scores.

A head multiplies N hidden states with V word vectors. Here a few rows of scores at a time are
computed, used for the loss and its gradient, and discarded. Peak memory is a few times chunk x V
for any N, forward and backward, and no score is computed twice if the loss is a scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.heads.base import Tokens, WordHead, count_outside, product_dtype
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.base import INF, widened

# rows [N, K, d], log_prior [N, K] or None, weight [V, d], bias [V] or None, and the tensors among
# the arguments of the mapping
Inputs: TypeAlias = Sequence[Any]
# maps the gradient of the values [R] to those of the scores [R, V] and of the learned arguments;
# call it once
Vjp: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]


def chunked_loss(
    head: WordHead, rows: Tensor, tokens: Tokens, log_prior: Tensor | None = None
) -> Tensor:
    """-log sum_k pi_nk p_nk(target_n), p_nk = map(W h_nk + b), chunk / K tokens at a time.

    Args:
        head: has W [V, d], b [V] and the mapping, whose own loss replaces -log p if `tokens` say
            so.
        rows: h, [N, K, d]; K = 1 without a mixture.
        tokens: targets, chunk and scale. With a scale the gradient is computed together with the
            loss; otherwise the scores are recomputed for it.
        log_prior: log pi, [N, K].

    Raises:
        TypeError: rows in a dtype other than W's, without autocast.
    """
    mapping, weight, bias = head.mapping, head.weight, head.bias
    dtype = product_dtype(rows, weight)
    masked = None if bias is None else bias.detach() == -INF
    if masked is not None and not masked.any():
        masked = None
    arguments = mapping.arguments()
    tensors = [a for a in arguments.values() if isinstance(a, Tensor)]
    inputs = [rows, log_prior, weight, bias, *tensors]
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    chunks = Chunks(tokens, mapping, arguments, masked, dtype, learns, head.watch.bound())
    with torch.autocast(rows.device.type, enabled=False):
        loss: Tensor = _ChunkedLoss.apply(chunks, *inputs)
    head.watch.report(chunks.outside, rows.shape[:2].numel() * len(weight))
    return loss


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chunks: Chunks, *inputs: Tensor | None) -> Tensor:
        ctx.chunks, ctx.ready = chunks, None
        ctx.save_for_backward(*inputs)
        scale = chunks.tokens.scale
        if scale is None or not chunks.learns:
            losses = chunks.losses(inputs)
        else:
            losses, ctx.ready = chunks.gradients(inputs, None, ctx.needs_input_grad[1:])
        return losses if scale is None else losses.sum() * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # once_differentiable would silently drop the term
            raise RuntimeError(
                "create_graph=True: nll and loss have no second derivative; use "
                "log_prob(hidden).gather(...), which holds all scores"
            )
        inputs, scale = ctx.saved_tensors, ctx.chunks.tokens.scale
        # scaled in place and returned once; a second backward recomputes them
        sums, ctx.ready = ctx.ready, None
        if sums is None:
            upstream = grad if scale is None else None
            _, sums = ctx.chunks.gradients(inputs, upstream, ctx.needs_input_grad[1:])
        if scale is not None:
            # last and in float32, because p / N would underflow in float16
            sums = [total if total is None else total.mul_(grad * scale) for total in sums]
        return None, *(
            total if total is None else total.to(given.dtype)
            for total, given in zip(sums, inputs, strict=True)
        )


@dataclass(frozen=True)
class Chunks:
    """State of one call of `chunked_loss`, except the inputs, which autograd keeps for backward.

    Attributes:
        arguments: arguments of the mapping, by name.
        masked_vocab: [V], mask of words with bias -inf; None if there are none.
        dtype: dtype of the products with W.
        learns: whether a gradient is needed.
        bound: count scores outside [-bound, bound]; None to count none.
        outside: counts of these scores, one tensor per chunk.
    """

    tokens: Tokens
    mapping: Mapping
    arguments: dict[str, Any]
    masked_vocab: Tensor | None
    dtype: torch.dtype
    learns: bool
    bound: float | None
    outside: list[Tensor] = field(default_factory=list)

    def losses(self, inputs: Inputs) -> Tensor:
        """[N], without a graph."""
        inputs = self._prepared(inputs, learns=False)
        joints = (self._joint(part, inputs, learns=False)[0] for part in self._parts(inputs))
        return torch.cat([-joint.logsumexp(-1) for joint in joints])

    def gradients(
        self, inputs: Inputs, upstream: Tensor | None, needed: Sequence[bool]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return losses [N] and gradients of sum_n upstream_n loss_n by the inputs that need one.

        Upstream defaults to 1. The gradients are in at least float32.
        """
        sums = [
            torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32)) if need else None
            for t, need in zip(inputs, needed, strict=True)
        ]
        inputs = self._prepared(inputs, learns=True)
        losses = [self._add_chunk(part, inputs, upstream, sums) for part in self._parts(inputs)]
        return torch.cat(losses), sums

    def _prepared(self, inputs: Inputs, learns: bool) -> Inputs:
        """Return W and b in the dtype of the products, and the mapping's arguments as leaves."""
        rows, log_prior, weight, bias, *tensors = inputs
        bias = None if bias is None else bias.to(self.dtype)
        leaves = [t.detach().requires_grad_(learns and t.requires_grad) for t in tensors]
        return rows, log_prior, weight.to(self.dtype), bias, *leaves

    def _parts(self, inputs: Inputs) -> Iterator[slice]:
        count, components, _ = inputs[0].shape
        step = max(1, self.tokens.chunk // components)
        return (slice(i, i + step) for i in range(0, max(1, count), step))

    def _joint(self, part: slice, inputs: Inputs, learns: bool) -> tuple[Tensor, Vjp]:
        """Return log pi_k p_k(target), [tokens, K], and the vjp of its terms."""
        rows, log_prior, weight, bias, *tensors = inputs
        hidden = rows[part].flatten(0, 1).to(self.dtype)  # [tokens x K, d]
        scores = widened(F.linear(hidden, weight, bias))
        if self.bound is not None:
            self.outside.append(count_outside(scores, self.bound))
        targets = self.tokens.targets[part].repeat_interleave(rows.shape[1])
        values, vjp = self._values(scores.requires_grad_(learns), targets, tensors)
        joint = values.unflatten(0, (-1, rows.shape[1]))
        return joint if log_prior is None else joint + log_prior[part], vjp

    def _values(
        self, scores: Tensor, targets: Tensor, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Vjp]:
        """Return log p of the targets [R], or minus the mapping's own loss, and its vjp."""
        names = [name for name, a in self.arguments.items() if isinstance(a, Tensor)]
        arguments = {**self.arguments, **dict(zip(names, tensors, strict=True))}
        leaves = (scores, *(t for t in tensors if t.requires_grad))
        spec = self.mapping.spec
        if spec.log_g is not None and not self.tokens.own_loss:
            with torch.set_grad_enabled(scores.requires_grad):
                log_g = self._log_g(scores, arguments)
            return _pointwise(log_g, targets, leaves)
        with torch.set_grad_enabled(scores.requires_grad):
            if self.tokens.own_loss and spec.own_loss is not None:
                values = -spec.own_loss(scores, targets, **arguments, reduction="none")
            else:
                log_p = spec.log_function(scores, **arguments)
                values = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return values.detach(), lambda grad: torch.autograd.grad(values, leaves, grad)

    def _log_g(self, scores: Tensor, arguments: dict[str, Any]) -> Tensor:
        spec = self.mapping.spec
        log_g, values = spec.log_g, list(arguments.values())
        assert log_g is not None
        if spec.weights is None:  # parameters come as tensors, as in `on_rows`
            values = [v if isinstance(v, Tensor) else scores.new_full((1,), v) for v in values]
        if self.masked_vocab is None:
            return log_g(scores, *values)
        # g(-inf) is not 0 for the even functions
        finite = scores.masked_fill(self.masked_vocab, 0.0)
        return log_g(finite, *values).masked_fill(self.masked_vocab, -INF)

    def _add_chunk(
        self, part: slice, inputs: Inputs, upstream: Tensor | None, sums: Sequence[Tensor | None]
    ) -> Tensor:
        """Add one chunk's gradients to the sums, and return the losses of its tokens."""
        rows, _, weight, *_ = inputs
        for_rows, for_prior, for_weight, for_bias, *for_tensors = sums
        joint, vjp = self._joint(part, inputs, learns=True)
        # share of each component in the target
        share = -joint.softmax(-1)  # [tokens, K]
        if upstream is not None:
            share *= upstream[part].unsqueeze(-1)
        for_scores, *for_learned = vjp(share.flatten())
        if for_prior is not None:
            for_prior[part] = share
        if for_bias is not None:
            for_bias += for_scores.sum(0)
        for_scores = for_scores.to(self.dtype)
        if for_rows is not None:
            for_rows[part] = (for_scores @ weight).unflatten(0, share.shape)
        if for_weight is not None:
            hidden = rows[part].flatten(0, 1).to(self.dtype)
            if for_weight.dtype == self.dtype:  # in place
                for_weight.addmm_(for_scores.t(), hidden)
            else:
                for_weight += for_scores.t() @ hidden
        learned = [total for total in for_tensors if total is not None]
        for total, found in zip(learned, for_learned, strict=True):
            total += found
        return -joint.logsumexp(-1)


def _pointwise(log_g: Tensor, targets: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Vjp]:
    """Return log p of the targets for p = g / sum g, [R], and its vjp, in the memory of log p."""
    scores = leaves[0]
    log_p = log_g.detach().log_softmax(-1)
    values = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    # log 0 is represented by the lowest finite number
    values = values.masked_fill(values < torch.finfo(values.dtype).min / 2, -INF)
    if log_g is not scores:  # NaN for a score of +inf, which a bounded g would hide
        top = scores.detach().amax(-1)
        values += top - top

    def vjp(grad: Tensor) -> tuple[Tensor, ...]:
        # d log p_c / d log g_j = [j = c] - p_j
        weights = log_p.exp_().mul_(-grad.unsqueeze(-1))
        weights.scatter_add_(-1, targets.unsqueeze(-1), grad.unsqueeze(-1))
        return (weights,) if log_g is scores else torch.autograd.grad(log_g, leaves, weights)

    return values, vjp

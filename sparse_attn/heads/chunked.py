"""Losses over a large vocabulary whose scores are never held in full.

A head multiplies N hidden states with V word vectors. Here a few rows of scores are made, used for
the loss and for its gradient, then thrown away: peak memory is a few times chunk x V,
whatever N is, forward and backward, and no score is computed twice where the loss is one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.heads.base import Tokens
from sparse_attn.losses import LOSSES
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.base import INF, widened

Pull: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Criterion:
    """What is computed from one chunk of scores: log p of the target, or minus the mapping's loss.

    watch: told of every chunk of scores.
    """

    mapping: Mapping
    own_loss: bool = False
    watch: Callable[[Tensor], None] | None = None

    def __call__(
        self,
        scores: Tensor,
        targets: Tensor,
        arguments: dict[str, Any],
        banned: Tensor | None,
        learns: bool,
    ) -> tuple[Tensor, Pull]:
        """Scores [R, V] and targets [R] to values [R] and the function that pulls gradients back.

        The pull takes the gradient of the values [R] and gives that of the scores and of every
        tensor argument. It may be called once. `banned` [V] are the words whose bias is -inf.
        """
        spec = self.mapping.spec
        if self.watch is not None:
            self.watch(scores)
        scores = scores.requires_grad_(learns)
        tensors = [a for a in arguments.values() if isinstance(a, Tensor) and a.requires_grad]
        if self.own_loss or spec.log_g is None:
            with torch.set_grad_enabled(learns):
                values = self._row_values(scores, targets, arguments)
            return values.detach(), lambda grad: torch.autograd.grad(
                values, (scores, *tensors), grad
            )
        with torch.set_grad_enabled(learns):
            if banned is None:
                log_weights = spec.log_g(scores, *arguments.values())
            else:  # g(-inf) is not 0 for the even functions
                finite = scores.masked_fill(banned, 0.0)
                log_weights = spec.log_g(finite, *arguments.values()).masked_fill(banned, -INF)
        log_p = log_weights.detach().log_softmax(-1)
        values = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        # log 0 is written as the lowest finite number
        values = values.masked_fill(values < torch.finfo(values.dtype).min / 2, -INF)
        if log_weights is not scores:  # NaN where a score is +inf, which a bounded g would hide
            top = scores.detach().amax(-1)
            values += top - top

        def pull(grad: Tensor) -> tuple[Tensor, ...]:
            # d log p_c / d log g_j = [j = c] - p_j, in the memory of log p
            weights = log_p.exp_().mul_(-grad.unsqueeze(-1))
            weights.scatter_add_(-1, targets.unsqueeze(-1), grad.unsqueeze(-1))
            if log_weights is scores:
                return (weights,)
            return torch.autograd.grad(log_weights, (scores, *tensors), weights)

        return values, pull

    def _row_values(self, scores: Tensor, targets: Tensor, arguments: dict[str, Any]) -> Tensor:
        if self.own_loss:
            own = LOSSES[self.mapping.name]
            return -own(scores, targets, **arguments, reduction="none")
        log_p = self.mapping.spec.log_function(scores, **arguments)
        return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class _Job:
    """What stays fixed through one call: `fixed` and `names` are the mapping's arguments."""

    criterion: Criterion
    tokens: Tokens
    names: Sequence[str]
    fixed: dict[str, Any]
    banned: Tensor | None
    dtype: torch.dtype
    learns: bool


def chunked_loss(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tokens,
    criterion: Criterion,
    log_prior: Tensor | None = None,
) -> Tensor:
    """-log sum_k pi_nk p_nk(target_n), p_nk = map(W h_nk + b), chunk / K tokens at a time.

    Args:
        rows: h, [N, K, d]; K = 1 without a mixture.
        weight, bias: W [V, d] and b [V].
        tokens: targets, chunk and scale. With a scale the gradient is worked out together with the
            loss; without, the scores are worked out again for it.
        criterion: the mapping, and what of it is computed.
        log_prior: log pi, [N, K].

    Raises:
        TypeError: rows of another dtype than W, without autocast.
    """
    arguments = criterion.mapping.arguments()
    tensors = {name: a for name, a in arguments.items() if isinstance(a, Tensor)}
    inputs = [rows, log_prior, weight, bias, *tensors.values()]
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    device = rows.device.type
    cast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if cast else weight.dtype
    if not cast and rows.dtype != dtype:
        raise TypeError(
            f"hidden: expected {dtype}, the type of the head, got {rows.dtype}; use "
            f"hidden.to({dtype}), or autocast"
        )
    banned = None if bias is None else bias.detach() == -INF
    if banned is not None and not banned.any():
        banned = None
    names = list(tensors)
    job = _Job(criterion, tokens, names, arguments, banned, dtype, learns)
    with torch.autocast(device, enabled=False):
        return _ChunkedLoss.apply(job, *inputs)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: _Job, *inputs: Tensor | None) -> Tensor:
        ctx.job, ctx.ready = job, None
        ctx.save_for_backward(*inputs)
        if job.tokens.scale is None:
            return _losses(job, inputs)
        if not job.learns:
            return _losses(job, inputs).sum() * job.tokens.scale
        losses, ctx.ready = _gradients(job, inputs, None, ctx.needs_input_grad[1:])
        return losses.sum() * job.tokens.scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # once_differentiable would drop the term in silence
            raise RuntimeError(
                "create_graph=True: nll and loss have no second derivative; take log_prob(hidden) "
                "and its gather, which hold all scores"
            )
        job, inputs, needed = ctx.job, ctx.saved_tensors, ctx.needs_input_grad[1:]
        upstream = grad if job.tokens.scale is None else None
        # given away once, and scaled in place; who asks again has them worked out again
        sums, ctx.ready = ctx.ready, None
        if sums is None:
            _, sums = _gradients(job, inputs, upstream, needed)
        # the scale comes last, in float32: p / N would underflow in float16
        factor = None if job.tokens.scale is None else grad * job.tokens.scale
        return None, *(_finished(s, t, factor) for s, t in zip(sums, inputs, strict=True))


class _Chunks:
    """The inputs of one call cut into chunks of tokens, in the dtype of its products."""

    def __init__(self, job: _Job, inputs: Sequence[Tensor | None]) -> None:
        self.job = job
        rows, log_prior, weight, bias, *tensors = inputs
        assert rows is not None
        assert weight is not None
        self.rows, self.log_prior = rows, log_prior
        self.weight = weight.to(job.dtype)
        self.bias = None if bias is None else bias.to(job.dtype)
        self.arguments = dict(job.fixed)
        for name, tensor in zip(job.names, tensors, strict=True):
            assert tensor is not None
            learned = job.learns and tensor.requires_grad
            self.arguments[name] = tensor.detach().requires_grad_(learned)

    def __iter__(self) -> Iterator[slice]:
        tokens = max(1, self.job.tokens.chunk // self.rows.shape[1])
        return (slice(i, i + tokens) for i in range(0, max(1, len(self.rows)), tokens))

    def hidden(self, part: slice) -> Tensor:
        """[tokens x K, d]"""
        return self.rows[part].flatten(0, 1).to(self.weight.dtype)

    def joint(self, part: slice, learns: bool) -> tuple[Tensor, Pull]:
        """log pi_k p_k(target), [tokens, K], and what pulls its gradient back."""
        scores = widened(F.linear(self.hidden(part), self.weight, self.bias))
        targets = self.job.tokens.targets[part].repeat_interleave(self.rows.shape[1])
        values, pull = self.job.criterion(scores, targets, self.arguments, self.job.banned, learns)
        joint = values.unflatten(0, (-1, self.rows.shape[1]))
        return joint if self.log_prior is None else joint + self.log_prior[part], pull


def _losses(job: _Job, inputs: Sequence[Tensor | None]) -> Tensor:
    """[N], without a graph."""
    chunks = _Chunks(job, inputs)
    losses = [-chunks.joint(part, learns=False)[0].logsumexp(-1) for part in chunks]
    return torch.cat(losses)


def _gradients(
    job: _Job, inputs: Sequence[Tensor | None], upstream: Tensor | None, needed: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """The losses [N] and the gradients of sum_n upstream_n loss_n to the inputs that need one.

    Upstream 1 if left out. The gradients are in float32 at least.
    """
    chunks = _Chunks(job, inputs)
    sums = [
        torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32))
        if t is not None and need
        else None
        for t, need in zip(inputs, needed, strict=True)
    ]
    losses = [_add_chunk(chunks, part, upstream, sums) for part in chunks]
    return torch.cat(losses), sums


def _add_chunk(
    chunks: _Chunks, part: slice, upstream: Tensor | None, sums: Sequence[Tensor | None]
) -> Tensor:
    """Add the gradients of one chunk to their sums; the losses of its tokens."""
    for_rows, for_prior, for_weight, for_bias, *for_tensors = sums
    joint, pull = chunks.joint(part, learns=True)
    # the share that each component has in the target
    share = -joint.softmax(-1)  # [tokens, K]
    if upstream is not None:
        share *= upstream[part].unsqueeze(-1)
    for_scores, *for_arguments = pull(share.flatten())
    if for_prior is not None:
        for_prior[part] = share
    if for_bias is not None:
        for_bias += for_scores.sum(0)
    for_scores = for_scores.to(chunks.weight.dtype)
    if for_rows is not None:
        for_rows[part] = (for_scores @ chunks.weight).unflatten(0, share.shape)
    if for_weight is not None:
        _add_product(for_weight, for_scores.t(), chunks.hidden(part))
    learned = [total for total in for_tensors if total is not None]
    for total, found in zip(learned, for_arguments, strict=True):
        total += found
    return -joint.logsumexp(-1)


def _finished(total: Tensor | None, given: Tensor | None, factor: Tensor | None) -> Tensor | None:
    if total is None or given is None:
        return None
    return (total if factor is None else total.mul_(factor)).to(given.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, in the memory of total where the types allow it."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right

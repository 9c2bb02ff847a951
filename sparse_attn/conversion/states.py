"""Hidden states and outputs of a model, and their distance between two models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn.inspection import record_attention

TINY = 1e-6


class States(NamedTuple):
    """Hidden states and outputs of a model for a batch.

    Attributes:
        hidden: states after each block, (B, T, D).
        logits: scores of next words (B, T, V) or classes (B, C); None for a model without a head.
    """

    hidden: Sequence[Tensor]
    logits: Tensor | None


def states_of(model: nn.Module, batch: dict[str, Tensor]) -> States:
    """Run one forward pass."""
    outputs = model(**batch, output_hidden_states=True)
    logits = getattr(outputs, "logits", None)
    return States(
        [_precise(hidden) for hidden in outputs.hidden_states[1:]],
        None if logits is None else _precise(logits),
    )


def _precise(x: Tensor) -> Tensor:
    """Cast to at least float32, because squares of states overflow in float16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def distances(ours: States, theirs: States, mask: Tensor) -> Tensor:
    """d = mean_l mean_t |h_lt - h'_lt|^2 / |h'_lt|^2 + d_out for each text, (B,).

    h are the hidden states of block l at token t, h' theirs. d_out is 1 - cos(m, m') of the mean
    last states m in a model without a head, KL(p' || p) of its words (mean over tokens) or classes
    in one with a head, and the squared difference where the head gives one number. Labels that do
    not exclude each other count as classes, and heads without logits (question answering) as none.

    Args:
        mask: (B, T), 1 where a token counts.
    """
    tokens = mask.to(theirs.hidden[-1].dtype)  # (B, T)
    count = tokens.sum(1)
    blocks = [
        ((h - t).square().sum(-1) / t.square().sum(-1).clamp(min=TINY) * tokens).sum(1) / count
        for h, t in zip(ours.hidden, theirs.hidden, strict=True)
    ]
    return torch.stack(blocks).mean(0) + _of_outputs(ours, theirs, tokens)


def _of_outputs(ours: States, theirs: States, tokens: Tensor) -> Tensor:
    if ours.logits is None or theirs.logits is None:
        mine, its = ((s.hidden[-1] * tokens.unsqueeze(-1)).sum(1) for s in (ours, theirs))
        return 1 - F.cosine_similarity(mine, its, dim=-1)
    if ours.logits.shape[-1] == 1:
        return (ours.logits - theirs.logits).square().flatten(1).mean(1)
    log_p, log_q = theirs.logits.log_softmax(-1), ours.logits.log_softmax(-1)
    divergence = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    if divergence.dim() == 1:
        return divergence
    return (divergence * tokens).sum(1) / tokens.sum(1)


def zeros_of(model: nn.Module, batches: Sequence[Any]) -> list[float]:
    """Return the share of exact zeros in each layer of a patched model over these batches."""
    with torch.no_grad(), record_attention(model) as record:
        for batch in batches:
            model(**batch)
    return record.zero_counts.per_layer

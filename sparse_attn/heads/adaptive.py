"""Class-based head of Grave et al.: frequent words directly, rare ones by cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from sparse_attn.heads.base import Head, Tokens, check_hidden, positive
from sparse_attn.heads.linear import LinearHead
from sparse_attn.mappings import Mapping


class Cluster(nn.Module):
    """Distribution within the words [first, last): map(W P h + b), P a projection to `size`."""

    def __init__(
        self, hidden: int, size: int, first: int, last: int, mapping: Mapping, bias: bool
    ) -> None:
        super().__init__()
        self.first = first
        self.projection = nn.Linear(hidden, size, bias=False)
        self.head = LinearHead(size, last - first, mapping, bias)


class AdaptiveHead(Head):
    """p(w) = q(w) for words of the shortlist, q(cluster) q_cluster(w) for others.

    q = map(W h + b) over the shortlist and the clusters; q_i = map(W_i P_i h + b_i) over the words
    of cluster i, whose P_i projects to hidden // div_value^i. Words are numbered by frequency, the
    most frequent first: cluster i holds [cutoffs[i - 1], cutoffs[i]), the last one the rest. A
        token costs the scores of the shortlist and, for a word outside it, of one cluster.
    Source: Grave et al. 2017, section 4; with softmax equal to torch's AdaptiveLogSoftmaxWithLoss.

    Args:
        hidden: size d of the hidden states h.
        vocab: number of words V.
        cutoffs: increasing, in [1, V - 1]; the first is the size of the shortlist.
        mapping: a registered name or a `Mapping`, pointwise and without zeros; shared by all parts.
        div_value: factor by which each cluster's projection is smaller than the previous one.
        bias: whether q and the q_i have a bias.

    Attributes:
        shortlist: `LinearHead` for q: words [0, cutoffs[0]), then the clusters.
        clusters: `Cluster`s with their `projection` and `head`.

    Raises:
        ValueError: sizes below 1; cutoffs that are empty, not increasing or out of range; a
            div_value below 1 or too large for the hidden size; a mapping that returns zeros or is
            not pointwise.
        TypeError: cutoffs that are not integers.
    """

    def __init__(
        self,
        hidden: int,
        vocab: int,
        cutoffs: Sequence[int],
        mapping: str | Mapping = "softmax",
        div_value: float = 4.0,
        bias: bool = True,
    ) -> None:
        super().__init__(hidden, vocab, mapping)
        if self.mapping.spec.log_g is None or not positive(self.mapping):
            raise ValueError(
                f"mapping={self.mapping.name}: expected a pointwise mapping without zeros, such as "
                "softmax or sigsoftmax; LinearHead takes the others"
            )
        self.cutoffs = tuple(cutoffs)
        _check_cutoffs(self.cutoffs, vocab)
        sizes = _sizes(hidden, div_value, len(self.cutoffs))
        self.shortlist = LinearHead(hidden, self.cutoffs[0] + len(self.cutoffs), self.mapping, bias)
        ends = (*self.cutoffs[1:], vocab)
        self.clusters = nn.ModuleList(
            Cluster(hidden, size, first, last, self.mapping, bias)
            for size, first, last in zip(sizes, self.cutoffs, ends, strict=True)
        )

    def log_prob(self, hidden: Tensor) -> Tensor:
        check_hidden(hidden, self.hidden)
        log_q, *log_clusters = self.shortlist.log_prob(hidden).split(
            [self.cutoffs[0], *[1] * len(self.clusters)], dim=-1
        )
        parts = [
            log_cluster + cluster.head.log_prob(cluster.projection(hidden))
            for log_cluster, cluster in zip(log_clusters, self._clusters(), strict=True)
        ]
        return torch.cat([log_q, *parts], dim=-1)

    def token_losses(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        rows, targets = hidden.reshape(-1, self.hidden), tokens.targets
        groups = torch.bucketize(targets, targets.new_tensor(self.cutoffs), right=True)
        entries = torch.where(groups == 0, targets, self.cutoffs[0] + groups - 1)
        total = self.shortlist.token_losses(rows, replace(tokens, targets=entries))
        for number, cluster in enumerate(self._clusters(), 1):
            # a cluster without targets takes part with no rows, so that its gradients are zeros
            hits = (groups == number).nonzero().squeeze(-1)
            states = cluster.projection(rows[tokens.kept[hits]])
            everyone = torch.arange(len(hits), device=hits.device)
            words = targets[hits] - cluster.first
            losses = cluster.head.token_losses(
                states, replace(tokens, kept=everyone, targets=words)
            )
            scaled = tokens.scale is not None
            total = total + losses if scaled else total.index_add(0, hits, losses)
        return total

    def _clusters(self) -> list[Cluster]:
        return [cast(Cluster, cluster) for cluster in self.clusters]

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, vocab={self.vocab}, cutoffs={self.cutoffs}"


def _check_cutoffs(cutoffs: tuple[int, ...], vocab: int) -> None:
    if not all(isinstance(cutoff, int) for cutoff in cutoffs):
        raise TypeError(f"cutoffs={list(cutoffs)}: expected integers")
    rising = all(low < high for low, high in zip((0, *cutoffs), (*cutoffs, vocab), strict=True))
    if not cutoffs or not rising:
        raise ValueError(
            f"cutoffs={list(cutoffs)}: expected at least one, increasing, in [1, {vocab - 1}]"
        )


def _sizes(hidden: int, div_value: float, clusters: int) -> list[int]:
    """Return hidden // div_value^i for cluster i = 1, 2, ..."""
    if not 1 <= div_value < torch.inf:
        raise ValueError(f"div_value={div_value}: expected a number in [1, inf)")
    sizes = [int(hidden // div_value**number) for number in range(1, clusters + 1)]
    if sizes and sizes[-1] < 1:
        raise ValueError(
            f"div_value={div_value}: leaves cluster {clusters} of {clusters} with {sizes[-1]} of "
            f"{hidden} hidden units; use a smaller one, or fewer cutoffs"
        )
    return sizes

"""Mixtures of softmaxes, of sigsoftmaxes, and of any other pointwise mapping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn.heads.base import (
    RangeWatch,
    Tokens,
    WordHead,
    as_distribution,
    check_hidden,
    count_outside,
    positive,
    product_dtype,
)
from sparse_attn.heads.chunked import chunked_loss
from sparse_attn.heads.linear import word_biases, word_vectors
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.base import widened

MOST_COMPONENTS = 1000  # each has a matrix, and the number may come from an untrusted config


class MixtureHead(WordHead):
    """p = sum_k pi_k map(W h_k + b), h_k = tanh(U_k h + c_k), pi = prior(V h).

    mapping = softmax is MoS (Yang et al. 2018), sigsoftmax MoSS (Kanai et al. 2018, which also uses
    it for the prior), plif MoS + PLIF (Ganea et al. 2019: one PLIF for all components). Computed in
    logarithms, in at least float32, so that p sums to 1 without the 1e-8 of the reference code.
    `nll` holds the K hidden states h_k of every token that counts, and a chunk of scores.
    Source: Yang et al. 2018; Kanai et al. 2018, table 1; Ganea et al. 2019, table 1.

    Args:
        hidden: size of the hidden states h.
        vocab: number of classes.
        mapping: a registered name or a `Mapping`, shared by the components.
        components: K.
        bias: whether to add b.
        tie: W, [vocab, latent], or the embedding that holds it.
        latent: size of the h_k; by default the size of `tie`, or `hidden`.
        prior: mapping of the mixture weights; by default sigsoftmax for sigsoftmax, else softmax.
        dropout: on the h_k, one mask for all positions of a sequence in hidden states (B, T,
            hidden), one per row in (N, hidden).

    Raises:
        ValueError: sizes or components below 1, more than 1,000 components, dropout outside
            [0, 1), a `tie` of the wrong shape, or a mapping that returns zeros.
        TypeError: a `tie`, a mapping or a prior of the wrong type.
    """

    def __init__(
        self,
        hidden: int,
        vocab: int,
        mapping: str | Mapping = "softmax",
        components: int = 15,
        bias: bool = True,
        tie: nn.Parameter | nn.Embedding | None = None,
        latent: int | None = None,
        prior: str | Mapping | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden, vocab, mapping)
        self.watch = RangeWatch(self.mapping)
        if not isinstance(components, int):
            raise ValueError(f"components={components}: expected a whole number")
        if not 1 <= components <= MOST_COMPONENTS:
            raise ValueError(
                f"components={components}: expected at least 1 and at most {MOST_COMPONENTS}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout}: expected a number in [0, 1)")
        if prior is None:
            prior = "sigsoftmax" if self.mapping.name == "sigsoftmax" else "softmax"
        self.prior_mapping = as_distribution("prior", prior)
        for name, used in (("mapping", self.mapping), ("prior", self.prior_mapping)):
            if not positive(used):
                raise ValueError(
                    f"{name}={used.name}: it returns exact zeros, and a mixture is trained by "
                    "-log p; expected a mapping without zeros, such as softmax or sigsoftmax"
                )
        self.components = components
        self.dropout = dropout
        if latent is None:
            tied = tie.weight if isinstance(tie, nn.Embedding) else tie
            latent = hidden if tied is None else tied.shape[-1]
        if latent < 1:
            raise ValueError(f"latent={latent}: expected at least 1")
        self.weight = word_vectors(vocab, latent, tie)
        self.register_parameter("bias", word_biases(self.weight) if bias else None)
        kind: dict[str, Any] = {"dtype": self.weight.dtype, "device": self.weight.device}
        self.latent = nn.Linear(hidden, components * latent, **kind)
        self.prior = nn.Linear(hidden, components, bias=False, **kind)

    def latents(self, hidden: Tensor) -> Tensor:
        """Return h_k: (..., hidden) to (..., K, latent), with dropout in training.

        Raises:
            ValueError: hidden states of the wrong size.
        """
        check_hidden(hidden, self.hidden)
        latents = torch.tanh(self.latent(hidden))
        if self.training and self.dropout:
            latents = latents * self._dropout_mask(hidden)
        return latents.unflatten(-1, (self.components, -1))

    def _dropout_mask(self, hidden: Tensor) -> Tensor:
        """Draw a mask for (..., K latent), the same for all positions of (..., T, hidden)."""
        shape = [*hidden.shape[:-1], self.latent.out_features]
        if hidden.dim() > 2:
            shape[-2] = 1
        return F.dropout(self.weight.new_ones(shape), self.dropout)

    def log_prior(self, hidden: Tensor) -> Tensor:
        """Return log pi, in nats: (..., hidden) to (..., K)."""
        return self.prior_mapping.log(widened(self.prior(hidden)))

    def log_prob(self, hidden: Tensor) -> Tensor:
        latents, log_prior = self.latents(hidden), self.log_prior(hidden)
        bound, outside, total = self.watch.bound(), [], None
        for latent, log_weight in zip(latents.unbind(-2), log_prior.unbind(-1), strict=True):
            scores = widened(F.linear(latent, self.weight, self.bias))
            if bound is not None:
                outside.append(count_outside(scores, bound))
            part = self.mapping.log(scores) + log_weight.unsqueeze(-1)
            total = part if total is None else torch.logaddexp(total, part)
        assert total is not None
        self.watch.report(outside, total.numel() * self.components)
        return total

    def token_losses(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        product_dtype(hidden, self.weight)
        rows = tokens.pick(hidden.reshape(-1, self.hidden))
        latents = torch.tanh(self.latent(rows))  # [N, K latent]
        if self.training and self.dropout:
            mask = self._dropout_mask(hidden).expand(*hidden.shape[:-1], -1)
            latents = latents * tokens.pick(mask.reshape(-1, mask.shape[-1]))
        latents = latents.unflatten(-1, (self.components, -1))
        return chunked_loss(self, latents, tokens, self.log_prior(rows))

    def extra_repr(self) -> str:
        return (
            f"hidden={self.hidden}, vocab={self.vocab}, components={self.components}, "
            f"bias={self.bias is not None}"
        )

"""Plain head: one linear map and a probability mapping."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn.heads.base import RangeWatch, Tokens, WordHead, check_hidden, count_outside
from sparse_attn.heads.chunked import chunked_loss
from sparse_attn.mappings import Mapping


class LinearHead(WordHead):
    """p = map(W h + b).

    Args:
        hidden: size d of the hidden states h.
        vocab: number of classes V.
        mapping: a registered name with its default parameters, or a `Mapping`, such as
            `Mapping("sigsoftmax", learn="bias")` (Kanai et al. 2018) or
            `Mapping("plif", knots=100_000)` (Ganea et al. 2019).
        bias: whether to add b.
        tie: W, [V, d], or the embedding that holds it.

    Attributes:
        weight: W, [V, d].
        bias: b, [V], or None.

    Raises:
        ValueError: sizes below 1, a `tie` of the wrong shape, or a mapping with a value per
            attention head.
        TypeError: a `tie` or a mapping of the wrong type.
    """

    takes_own_loss = True

    def __init__(
        self,
        hidden: int,
        vocab: int,
        mapping: str | Mapping = "softmax",
        bias: bool = True,
        tie: nn.Parameter | nn.Embedding | None = None,
    ) -> None:
        super().__init__(hidden, vocab, mapping)
        self.watch = RangeWatch(self.mapping)
        self.weight = word_vectors(vocab, hidden, tie)
        self.register_parameter("bias", word_biases(self.weight) if bias else None)

    def scores(self, hidden: Tensor) -> Tensor:
        """Return W h + b: (..., hidden) to (..., vocab).

        Raises:
            ValueError: hidden states of the wrong size.
        """
        check_hidden(hidden, self.hidden)
        return F.linear(hidden, self.weight, self.bias)

    def log_prob(self, hidden: Tensor) -> Tensor:
        scores, bound = self.scores(hidden), self.watch.bound()
        if bound is not None:
            self.watch.report([count_outside(scores, bound)], scores.numel())
        return self.mapping.log(scores)

    def token_losses(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        rows = tokens.pick(hidden.reshape(-1, self.hidden)).unsqueeze(1)
        return chunked_loss(self, rows, tokens)

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, vocab={self.vocab}, bias={self.bias is not None}"


def word_biases(weight: nn.Parameter) -> nn.Parameter:
    """Return b = 0, [vocab], in the dtype and on the device of W."""
    return nn.Parameter(weight.new_zeros(len(weight)))


def word_vectors(vocab: int, size: int, tie: nn.Parameter | nn.Embedding | None) -> nn.Parameter:
    """Return W, [vocab, size]: the tied one, or a new one initialised as nn.Linear's."""
    if tie is None:
        return nn.Parameter(torch.empty(vocab, size).uniform_(-(size**-0.5), size**-0.5))
    weight = tie.weight if isinstance(tie, nn.Embedding) else tie
    if not isinstance(weight, nn.Parameter):
        raise TypeError(f"tie: expected an nn.Parameter or nn.Embedding, got {type(tie).__name__}")
    if weight.shape != (vocab, size):
        raise ValueError(
            f"tie: expected shape ({vocab}, {size}), vocabulary by hidden size, "
            f"got {tuple(weight.shape)}"
        )
    return weight

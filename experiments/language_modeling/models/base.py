"""Base class of the language models: an embedding, a network and a head."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from sparse_attn.heads import Head

State: TypeAlias = tuple[Tensor, ...]


class LanguageModel(nn.Module):
    """Model from tokens (B, T) to hidden states (B, T, d); state t predicts token t + 1.

    Args:
        embedding: a vector for each word, [V, e].
        head: hidden states to probabilities.
    """

    def __init__(self, embedding: nn.Embedding, head: Head) -> None:
        super().__init__()
        self.embedding = embedding
        self.head = head

    def initial_state(self, batch: int) -> State:
        """Initial state of `batch` texts; every entry is batch-first."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Hidden states (B, T, d) of tokens (B, T) int64, and the detached state after them."""
        raise NotImplementedError

    def regularized(self, tokens: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Return hidden states, a penalty to add to the training loss (0 by default), and state."""
        hidden, state = self(tokens, state)
        return hidden, torch.zeros((), device=hidden.device), state

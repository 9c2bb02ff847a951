"""Dropout whose mask is drawn once for all positions of a text (Gal & Ghahramani 2016)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def locked_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """x (B, T, d) with one mask (B, 1, d) for all T positions, scaled by 1 / (1 - p)."""
    if not training or p == 0:
        return x
    return x * F.dropout(torch.ones_like(x[:, :1]), p)


def embed(tokens: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Rows of weight [V, e] for tokens (B, T), a share p of the vocabulary dropped: (B, T, e)."""
    embedded = F.embedding(tokens, weight)
    if not training or p == 0:
        return embedded
    kept = F.dropout(weight.new_ones(len(weight), 1), p)  # [V, 1]
    return embedded * F.embedding(tokens, kept)

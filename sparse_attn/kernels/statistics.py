"""Statistics of rows of attention weights."""

from __future__ import annotations

import torch
from torch import Tensor

# 1 if any key is valid; valid keys; keys with p > 0; -sum q log q in nats, q = p / sum p; p on
# special keys; 1 if special keys are known and any key is valid; sum p
COLUMNS = ("rows", "valid", "support", "entropy", "special", "named", "mass")


def entropy_of(p: Tensor) -> Tensor:
    """-sum q log q in nats of rows (..., K), q = p / sum p; 0 for a row of zeros."""
    total = p.sum(-1)
    size = total.masked_fill(total == 0, 1.0)
    return torch.special.entr(p).sum(-1) / size + size.log()


def of_weights(weights: Tensor, valid: Tensor | None, special: Tensor | None) -> Tensor:
    """Compute the statistics of rows of weights, (B, H, Q, COLUMNS), at least float32; NaN for NaN.

    weights: (B, H, Q, K). valid: bool, broadcasts to it, None for all. special: (B, K), bool.
    """
    p = weights.detach()
    p = p if p.dtype == torch.float64 else p.float()
    total = p.sum(-1)
    count = p.new_full(total.shape, p.shape[-1])
    if valid is not None:
        count = valid.expand_as(p).sum(-1).to(p.dtype)
    spoiled = total * 0  # NaN for a NaN row
    some = (count > 0).to(p.dtype)
    support = (p > 0).sum(-1) + spoiled
    on_special, named = spoiled, torch.zeros_like(some)
    if special is not None:
        on_special, named = (p * special[:, None, None, :]).sum(-1) + spoiled, some
    return torch.stack([some, count, support, entropy_of(p), on_special, named, total], dim=-1)

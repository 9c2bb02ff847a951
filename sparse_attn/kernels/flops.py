"""What `torch.utils.flop_counter.FlopCounterMode` counts for the fused kernels: their products."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula


def register(forward: Any, backward: Any) -> None:
    """Have the operators of an implementation counted, as SDPA's are: every score, masked or not.

    forward: (query, key, value, ...); backward: (grad, query, key, value, ...).
    """
    register_flop_formula(forward)(_forward)
    register_flop_formula(backward)(_backward)


def _forward(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """2 B H Q K (D + Dv): q k^T and p v."""
    batch, heads, queries, dim = query
    return 2 * batch * heads * queries * key[2] * (dim + value[3])


def _backward(
    grad: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any
) -> int:
    """2 B H Q K (3 D + 2 Dv): q k^T again, and the gradients of p, value, query and key."""
    batch, heads, queries, dim = query
    return 2 * batch * heads * queries * key[2] * (3 * dim + 2 * value[3])

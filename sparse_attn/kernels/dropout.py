"""Dropout of weights by a hash of seed, head, row and column.

All implementations draw the same, so that a recomputed layer may run another one.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 16  # bits of the rate; two neighbouring keys share a hash of 32 bits


def share_of(rate: float) -> int:
    """Return the rate in units of 2^-16, below 1."""
    return min(round(rate * 2**BITS), 2**BITS - 1)


def scale_of(rate: float) -> float:
    """Return the factor of the kept weights."""
    return 2**BITS / (2**BITS - share_of(rate))


def draw_seed(device: torch.device) -> Tensor:
    """Draw a seed (1,) from the generator of the device."""
    return torch.randint(2**62, (1,), device=device)


def kept(seed: Tensor, rate: float, shape: tuple[int, int, int, int]) -> Tensor:
    """Return a mask of the kept weights, (B, H, Q, K).

    Numbers of 32 bits are held in 64, because compiled code may assume that no sum overflows.
    """
    batch, heads, queries, keys = shape
    head = torch.arange(batch * heads, device=seed.device).view(batch, heads, 1, 1)
    first = _mixed(_cut(seed) ^ _mixed(head))
    second = _mixed(_cut((seed >> 32) + head))
    state = _mixed(_cut(torch.arange(queries, device=seed.device)[:, None] + first))
    other = _mixed(_cut(state + second))
    pair = 2 * torch.arange((keys + 1) // 2, device=seed.device)
    bits = _cut((state ^ pair) * 0x7FEB352D + other)
    bits = _cut((bits ^ (bits >> 15)) * _SECOND)
    bits = bits ^ (bits >> 16)
    # the sign bit of the kernels' signed numbers
    both = [(half ^ 0x8000) >= share_of(rate) for half in (bits & 0xFFFF, bits >> BITS)]
    return torch.stack(both, dim=-1).flatten(-2)[..., :keys]


_SECOND = 0x846CA68B - 2**32  # so that a product with 32 bits fits into 64


def _cut(x: Tensor) -> Tensor:
    """Return the low 32 bits."""
    return x & 0xFFFFFFFF


def _mixed(x: Tensor) -> Tensor:
    """A bijection of 32 bits under which neighbours look independent (lowbias32, C. Wellons)."""
    x = _cut((x ^ (x >> 16)) * 0x7FEB352D)
    x = _cut((x ^ (x >> 15)) * _SECOND)
    return x ^ (x >> 16)

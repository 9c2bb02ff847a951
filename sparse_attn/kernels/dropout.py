"""Which weights dropout keeps: a hash of seed, head, row and column.

All implementations draw the same, so that a layer may run another one when it is recomputed.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 16  # of a rate, and of a weight's part of the hash that it shares with its neighbour


def share_of(rate: float) -> int:
    """The rate in units of 2^-16, below 1."""
    return min(round(rate * 2**BITS), 2**BITS - 1)


def scale_of(rate: float) -> float:
    """The factor of the weights that are kept."""
    return 2**BITS / (2**BITS - share_of(rate))


def draw_seed(device: torch.device) -> Tensor:
    """A seed (1,) from the generator of the device."""
    return torch.randint(2**62, (1,), device=device)


def kept(seed: Tensor, rate: float, shape: tuple[int, int, int, int]) -> Tensor:
    """Which weights (B, H, Q, K) are kept."""
    batch, heads, queries, keys = shape
    head = torch.arange(batch * heads, device=seed.device).view(batch, heads, 1, 1).int()
    low, high = (seed & 0xFFFFFFFF).int(), (seed >> 32).int()
    first, second = _mixed(low ^ _mixed(head)), _mixed(high + head)
    row = torch.arange(queries, device=seed.device).int()[:, None]
    state = _mixed(row + first)
    other = _mixed(state + second)
    pair = 2 * torch.arange((keys + 1) // 2, device=seed.device).int()
    bits = (state ^ pair) * 0x7FEB352D + other
    bits = (bits ^ _shifted(bits, 15)) * (0x846CA68B - 2**32)
    bits = bits ^ _shifted(bits, 16)
    both = torch.stack([bits << BITS, bits], dim=-1).flatten(-2)[..., :keys]
    return both >= (share_of(rate) << (32 - BITS)) - 2**31


def _mixed(x: Tensor) -> Tensor:
    """A bijection of 32 bits under which neighbours look independent (lowbias32, C. Wellons)."""
    x = (x ^ _shifted(x, 16)) * 0x7FEB352D
    x = (x ^ _shifted(x, 15)) * (0x846CA68B - 2**32)
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits of an unsigned number."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)

"""Losses that depend on n scores only through a = z_c, q = sum_k z_k^2 and s = sum_k z_k.

Such a loss trains the output layer of `factored.py` at a cost independent of n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_attn.losses.bouchard import shared_bouchard_bound


def _spherical(a: Tensor, q: Tensor, s: Tensor, n: int, eps: float) -> Tensor:
    """log sum_k (z_k^2 + eps) - log(a^2 + eps)."""
    return (q.clamp(min=0) + n * eps).log() - (a.square() + eps).log()


def _taylor(a: Tensor, q: Tensor, s: Tensor, n: int, eps: float) -> Tensor:
    """log sum_k (1 + (z_k + 1)^2)/2 - log (1 + (a + 1)^2)/2."""
    return (q + 2 * s + 2 * n).clamp(min=n).log() - torch.log1p((a + 1).square())


def _mse(a: Tensor, q: Tensor, s: Tensor, n: int, eps: float) -> Tensor:
    """||z - onehot_c||^2 / 2."""
    return (q - 2 * a + 1) / 2


def _bouchard(a: Tensor, q: Tensor, s: Tensor, n: int, eps: float) -> Tensor:
    """B - a."""
    mean = s / n
    return shared_bouchard_bound(mean, (q / n - mean.square()).clamp(min=0), n) - a


@dataclass(frozen=True)
class QuadraticLoss:
    """One loss of the family.

    Attributes:
        of: maps (a, q, s, n, eps) to the loss of each row. Rounding can make q, or a sum of
            squares, slightly too small, so each loss clamps them to values possible in exact
            arithmetic.
        mapping: registered name of the p whose likelihood the loss equals or bounds, or None.
    """

    of: Callable[[Tensor, Tensor, Tensor, int, float], Tensor]
    mapping: str | None


LOSSES = {
    "spherical": QuadraticLoss(_spherical, "spherical-softmax"),
    "taylor": QuadraticLoss(_taylor, "taylor-softmax"),
    "mse": QuadraticLoss(_mse, None),
    "bouchard": QuadraticLoss(_bouchard, "softmax"),
}

"""Labels of rows of scores: a class, or weights normalised to a distribution eta."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_attn.mappings.base import INF, widened

IGNORED = -100
"""A class index that says: this row does not count."""


@dataclass(frozen=True)
class OneLabel:
    """eta = onehot_c, stored as c, because one-hot rows over a vocabulary are large."""

    classes: Tensor  # (...), int64
    counted: Tensor  # (...), bool
    n: int

    @property
    def labelled(self) -> Tensor:
        """Rows that have a label, (...)."""
        return self.counted

    @property
    def eta(self) -> Tensor:
        """(..., n), bool."""
        return torch.arange(self.n, device=self.classes.device) == self.classes.unsqueeze(-1)

    def dot(self, values: Tensor) -> Tensor:
        """<eta, values>, (..., n) -> (...)."""
        return values.gather(-1, self.classes.unsqueeze(-1)).squeeze(-1)

    def any_in(self, region: Tensor) -> Tensor:
        """Return which rows have a label in a boolean region (..., n), (...)."""
        return self.dot(region)


@dataclass(frozen=True)
class WeightedLabels:
    """eta = y / |y|_1, or 0 in a row without labels."""

    eta: Tensor  # (..., n), floating point

    @property
    def counted(self) -> Tensor:
        """Rows that a mean counts, (...): all rows."""
        return torch.ones_like(self.labelled)

    @property
    def labelled(self) -> Tensor:
        """Rows that have a label, (...)."""
        return (self.eta != 0).any(-1)

    def dot(self, values: Tensor) -> Tensor:
        """<eta, values>, (..., n) -> (...); a value of -inf at weight 0 does not count."""
        return (self.eta * values.masked_fill(self.eta == 0, 0.0)).sum(-1)

    def any_in(self, region: Tensor) -> Tensor:
        """Return which rows have a label in a boolean region (..., n), (...)."""
        return ((self.eta != 0) & region).any(-1)


Labels = OneLabel | WeightedLabels


def read_target(target: Tensor, scores: Tensor, binary: bool) -> Labels:
    """Read the labels of scores (..., n): class indices (...) or weights (..., n).

    Raises:
        ValueError: the wrong shape; on the CPU also an index out of range, a weight that is
            negative or not finite, and with `binary` one that is neither 0 nor 1.
        TypeError: class indices that are not integers.
    """
    # elsewhere reading the values would wait for the device
    check = target.device.type == "cpu"
    if target.shape == scores.shape:
        if check:
            check_weights(target, binary)
        dtype = widened(scores).dtype
        weights = target.detach().to(torch.promote_types(target.dtype, dtype))
        # finite weights with an infinite sum
        overflows = weights.sum(-1, keepdim=True) == INF
        weights = weights * torch.where(overflows, 0.5 / weights.shape[-1], 1.0)
        total = weights.sum(-1, keepdim=True)
        return WeightedLabels((weights / total.masked_fill(total == 0, 1.0)).to(dtype))
    if target.shape != scores.shape[:-1]:
        raise ValueError(
            f"target: expected a class for each row, shape {tuple(scores.shape[:-1])}, or label "
            f"weights, shape {tuple(scores.shape)}, got {tuple(target.shape)}"
        )
    check_whole("target", target)
    counted, n = target != IGNORED, scores.shape[-1]
    if check:
        check_range("target", target[counted], n, f"{IGNORED}")
    return OneLabel(target.long().where(counted, 0), counted, n)


def check_whole(name: str, target: Tensor) -> None:
    """Raise TypeError unless the classes are integers."""
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(f"{name}: expected integers, such as int64, got {target.dtype}")


def check_range(name: str, target: Tensor, classes: int, ignored: str = "ignore_index") -> None:
    """Raise ValueError unless target is in [0, classes). Synchronises a GPU."""
    outside = (target < 0) | (target >= classes)
    if outside.any():
        raise ValueError(
            f"{name}: {target[outside][0].item()} is outside the vocabulary; expected numbers in "
            f"[0, {classes}), or {ignored} for what does not count"
        )


def check_weights(weights: Tensor, binary: bool) -> None:
    """Raise unless label weights are finite and not negative, or with `binary` 0 or 1."""
    if weights.is_complex():
        raise TypeError(f"target: expected real label weights, got {weights.dtype}")
    fits = (weights == 0) | (weights == 1) if binary else (weights >= 0) & weights.isfinite()
    if not fits.all():
        expected = "0 or 1, as this loss has no weights" if binary else "finite weights >= 0"
        raise ValueError(f"target: expected {expected}, got {weights[~fits][0].item()}")

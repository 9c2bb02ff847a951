"""Rules shared by all losses: masks, precision, rows that do not count, reductions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_attn.losses.targets import Labels, read_target
from sparse_attn.mappings.base import INF, aligned, widened

REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True)
class Rows:
    """Scores with their labels, prepared for the mathematics of a loss.

    A row that is not computed (fully masked, ignored, or without labels) has scores of zero, all
    valid; `reduced` discards its loss.

    Attributes:
        scores: z, (..., n), at least float32; 0, without gradient, where not valid.
        valid: (..., n), neither masked nor -inf.
        labels: eta.
        worked: (...), rows whose loss is not 0 by rule.
        counted: (...), rows that a mean counts.
        impossible: (...), rows with a label that is not valid; their loss is inf.
    """

    scores: Tensor
    valid: Tensor
    labels: Labels
    worked: Tensor
    counted: Tensor
    impossible: Tensor

    @property
    def eta(self) -> Tensor:
        """The labels as a full distribution, (..., n), in the dtype of scores."""
        return self.labels.eta.to(self.scores)

    @property
    def shifted(self) -> Tensor:
        """z - max z for shift-invariant losses, because differences keep their digits.

        Finite, and 0 where not valid. The maximum is held fixed, which does not change the gradient
        of such a loss.
        """
        away = self.scores - top_score(self.scores, self.valid)
        return away.clamp(min=torch.finfo(away.dtype).min).masked_fill(~self.valid, 0.0)

    def reduced(self, losses: Tensor, reduction: str) -> Tensor:
        """Return the losses (...), or their sum or mean, under the rules of all losses."""
        losses = losses.masked_fill(self.impossible, INF) + spoiled(self.scores)
        return reduce(losses.masked_fill(~self.worked, 0.0), self.counted.sum(), reduction)


def labelled_rows(
    scores: Tensor,
    target: Tensor,
    mask: Tensor | None,
    *,
    binary: bool = False,
    distribution: bool = False,
) -> Rows:
    """Prepare the rows of a loss; `distribution` refuses rows without labels, on the CPU.

    Raises:
        ValueError: mismatched shapes; on the CPU a bad value of target, or a masked label.
        TypeError: scores not floating point, mask not boolean, class indices not integers.
    """
    check_scores(scores)
    labels = read_target(target, scores, binary)
    present = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        present = aligned("mask", mask, scores)
    counted = labels.counted & present.any(-1)
    if scores.device.type == "cpu":
        _check_rows(labels, present, counted, distribution)
    worked = counted & labels.labelled
    z, valid = valid_scores(scores, present & worked.unsqueeze(-1))
    impossible = labels.any_in(~valid)
    valid = valid | ~valid.any(-1, keepdim=True)
    return Rows(z, valid, labels, worked, counted, impossible)


def check_scores(scores: Tensor, name: str = "scores") -> None:
    """Raise unless scores are floating point of shape (..., n), n at least 1."""
    if not scores.is_floating_point():
        raise TypeError(
            f"{name}: expected a floating-point tensor, got {scores.dtype}; use .float()"
        )
    if scores.dim() == 0 or scores.shape[-1] == 0:
        raise ValueError(
            f"{name}: expected shape (..., n), n at least 1, got {tuple(scores.shape)}"
        )


def valid_scores(scores: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return z, 0 without gradient where not valid, and the mask of valid entries, (..., n)."""
    valid = present & (scores != -INF)
    # masked entries must not affect values or gradients
    return widened(scores).masked_fill(~valid, 0.0), valid


def top_score(z: Tensor, valid: Tensor) -> Tensor:
    """Return max z over the valid classes, without gradient, (..., 1)."""
    return z.detach().masked_fill(~valid, -INF).amax(-1, keepdim=True)


def spoiled(z: Tensor) -> Tensor:
    """Return NaN for rows with a NaN or +inf score, 0 for others."""
    top = z.detach().amax(-1)
    return top - top


def reduce(losses: Tensor, count: int | Tensor, reduction: str) -> Tensor:
    """Return the losses, their sum, or their sum divided by the number of rows that count."""
    check_reduction(reduction)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / count


def check_reduction(reduction: str) -> None:
    """Raise ValueError for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: expected one of {', '.join(REDUCTIONS)}")


def _check_rows(labels: Labels, present: Tensor, counted: Tensor, distribution: bool) -> None:
    hidden = labels.any_in(~present) & counted
    if hidden.any():
        raise ValueError(
            f"target: row {_first(hidden)} has a label at a masked class; unmask the class or "
            "remove the label"
        )
    empty = counted & ~labels.labelled
    if distribution and empty.any():
        raise ValueError(
            f"target: row {_first(empty)} has no label, and this loss needs a distribution; mask "
            "all classes of the row or omit it"
        )


def _first(rows: Tensor) -> tuple[int, ...]:
    return tuple(rows.nonzero()[0].tolist())

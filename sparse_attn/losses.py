"""Losses that train a mapping which returns zeros, where -log p would be infinite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sparse_attn.functional import entmax, sparsemax
from sparse_attn.mappings.base import Value, widened


def sparsemax_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """L = sum_j p_j (z_j - p_j / 2) - z_c + 1/2, p = sparsemax(z).

    Convex, at least 0, and 0 once z_c exceeds every other score by 1. Its gradient is p - onehot_c.
    Source: Martins & Astudillo 2016, eq. 8 (called huber loss in Balazy et al. 2023).

    Args:
        scores: (..., n), floating point.
        targets: (...), the class c of every row, int64 in [0, n).

    Returns:
        (...), in float32 at least. There is no second derivative: p is held fixed.

    Raises:
        ValueError: targets of another shape or, on the CPU, out of range.
        TypeError: targets that are not whole numbers.
    """
    _check(scores, targets)
    return _fenchel_young(scores, targets, sparsemax(widened(scores)), 2.0)


def entmax_loss(scores: Tensor, targets: Tensor, alpha: Value = 1.5) -> Tensor:
    """L = sum_j p_j z_j + H(p) - z_c, p = entmax(z), H(p) = (1 - sum_j p_j^a) / (a (a - 1)).

    The Fenchel-Young loss of Tsallis' entropy: convex, at least 0, gradient p - onehot_c; alpha = 2
    is `sparsemax_loss`, alpha = 1 is -log p_c of softmax.
    Source: Peters et al. 2019, eq. 6-7; Blondel et al. 2020.

    Args:
        scores: (..., n), floating point.
        targets: (...), the class c of every row, int64 in [0, n).
        alpha: in [1, 2]; a float or a tensor broadcastable to the rows, with its gradient.

    Returns:
        (...), in float32 at least. There is no second derivative: p is held fixed.

    Raises:
        ValueError: alpha out of range, targets of another shape or, on the CPU, out of range.
        TypeError: targets that are not whole numbers.
    """
    _check(scores, targets)
    return _fenchel_young(scores, targets, entmax(widened(scores), alpha), alpha)


LOSSES: dict[str, Callable[..., Tensor]] = {"sparsemax": sparsemax_loss, "entmax": entmax_loss}
"""What trains a mapping that returns zeros: `(scores, targets, **parameters) -> row losses`."""


def check_shapes(targets: Tensor, shape: Sequence[int]) -> None:
    """Raise unless targets are whole numbers of the shape of the rows."""
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"targets: expected whole numbers, such as int64, got {targets.dtype}")
    if targets.shape != torch.Size(shape):
        raise ValueError(
            f"targets: expected shape {tuple(shape)}, one for each row, got {tuple(targets.shape)}"
        )


def check_range(targets: Tensor, classes: int) -> None:
    """Raise ValueError unless targets are in [0, classes). On a GPU it waits for the device."""
    outside = (targets < 0) | (targets >= classes)
    if outside.any():
        raise ValueError(
            f"targets: {targets[outside][0].item()} is outside the vocabulary; expected numbers in "
            f"[0, {classes}), or ignore_index for what does not count"
        )


def _check(scores: Tensor, targets: Tensor) -> None:
    check_shapes(targets, scores.shape[:-1])
    if targets.device.type == "cpu":  # elsewhere a look would wait for the device
        check_range(targets, scores.shape[-1])


def _fenchel_young(scores: Tensor, targets: Tensor, p: Tensor, alpha: Value) -> Tensor:
    """<p, z> + H(p) - z_c at the best p, which held fixed gives the exact gradient (envelope)."""
    scores, p = widened(scores), p.detach()
    # the loss does not change with z + const, and differences keep their digits
    shifted = scores - scores.detach().amax(-1, keepdim=True)
    chosen = shifted.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    # a score of -inf has p = 0, and no part in the sum
    return (p * shifted.masked_fill(p == 0, 0.0)).sum(-1) + _tsallis(p, alpha) - chosen


def _tsallis(p: Tensor, alpha: Value) -> Tensor:
    """H(p) = -sum p (p^e - 1) / e / (1 + e), e = alpha - 1, which is -sum p log p at e = 0."""
    e = torch.as_tensor(alpha, dtype=p.dtype, device=p.device).unsqueeze(-1) - 1
    log_p = p.masked_fill(p == 0, 1.0).log()
    y = e * log_p
    small = y.abs() < 1e-2
    # (p^e - 1) / e = log p * expm1(y) / y, of which the series ends where float64 does
    series = 1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5 * (1 + y / 6 * (1 + y / 7)))))
    far = y.masked_fill(small, 1.0)
    slope = log_p * torch.where(small, series, torch.expm1(far) / far)
    return -(p * slope).sum(-1) / (1 + e).squeeze(-1)

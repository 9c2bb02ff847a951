"""Labels of a distribution above a threshold, and the search for the threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDING = 1e-3  # tolerance for log p = 0 in half precision
AVERAGES = {"micro": None, "macro": 0, "samples": -1}  # dimension that F1 counts over


def search_threshold(
    log_p: Tensor,
    target: Tensor,
    candidates: Sequence[float] = (0.05, 0.1, 0.15, 0.2, 0.3),
    average: str = "micro",
) -> float:
    """Return the first candidate whose labels {i: p_i > threshold} have the highest F1.

    F1 = 2 |predicted and present| / (|predicted| + |present|), 0 if both are empty. Use a
    validation set: `head.threshold = search_threshold(log_p, target)`. p sums to 1, so k labels
    have about 1/k each; for ten or more labels per row pass smaller candidates.
    Source of the candidates: Balazy et al. 2023, table 1.

    Args:
        log_p: (..., labels), as returned by a head.
        target: (..., labels) of 0 and 1.
        candidates: numbers in [0, 1).
        average: "micro" counts over everything; "macro" is the mean over labels, "samples" over
            rows.

    Raises:
        ValueError: no candidates or one out of range, an unknown average, a target of the wrong
            shape or with other values, a log_p with NaN or above 0.
        TypeError: a candidate that is not a number, a target that is not a real tensor.
    """
    if not candidates:
        raise ValueError("candidates: expected at least one number in [0, 1), got none")
    for candidate in candidates:
        check_threshold("candidates", candidate)
    if average not in AVERAGES:
        raise ValueError(f"average={average!r}: expected one of {', '.join(AVERAGES)}")
    check_target(target, log_p.shape)
    if log_p.numel() == 0 or log_p.isnan().any():
        found = "NaN in it" if log_p.numel() else f"shape {tuple(log_p.shape)}"
        raise ValueError(f"log_p: expected log p of at least one row, got {found}")
    check_log_p(log_p)
    log_p, present = (x.reshape(-1, log_p.shape[-1]) for x in (log_p, target == 1))
    scores = [_f1(above(log_p, c), present, AVERAGES[average]) for c in candidates]
    return float(candidates[scores.index(max(scores))])


def _f1(predicted: Tensor, present: Tensor, dim: int | None) -> float:
    """F1 over all of [N, labels], or the mean of the F1 along `dim`."""
    hits = (predicted & present).sum(dim)
    total = predicted.sum(dim) + present.sum(dim)
    return float((2 * hits.double() / total.clamp(min=1)).mean())


def above(log_p: Tensor, threshold: float) -> Tensor:
    """p > threshold; at threshold 0 the support."""
    # in logarithms, because p of a label in the support may round to 0
    return log_p > (math.log(threshold) if threshold > 0 else -math.inf)


def check_log_p(log_p: Tensor) -> None:
    """Raise ValueError for values above 0, such as scores or probabilities."""
    if log_p.numel() and log_p.max() > ROUNDING:
        raise ValueError(
            f"log_p: expected logarithms of probabilities, at most 0, got {log_p.max().item():g}; "
            "pass the output of the head"
        )


def check_threshold(name: str, value: float) -> None:
    if not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}: expected a number in [0, 1)")
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value}: expected a number in [0, 1)")


def check_target(target: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a mask of targets other than 0 and 1; raise for them on the CPU, without a sync."""
    if not isinstance(target, Tensor) or target.is_complex():
        kind = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(f"target: expected a real tensor of 0 and 1, got {kind}")
    if target.shape != torch.Size(shape):
        raise ValueError(
            f"target: expected shape {tuple(shape)}, one entry per label, got {tuple(target.shape)}"
        )
    wrong = (target != 0) & (target != 1)
    if target.device.type == "cpu" and wrong.any():
        raise ValueError(
            f"target: expected 0 or 1 for every label, got {target[wrong][0].item()}; use "
            "one_hot for class numbers"
        )
    return wrong

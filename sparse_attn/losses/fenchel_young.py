"""Fenchel-Young losses of sparsemax and entmax, with gradient p - eta."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_attn.functional import entmax, sparsemax
from sparse_attn.losses.row_blocks import Rows, labelled_rows
from sparse_attn.losses.targets import OneLabel
from sparse_attn.mappings.base import Value
from sparse_attn.mappings.projection import ALPHA


def sparsemax_loss(
    scores: Tensor, target: Tensor, *, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """L = sum_j p_j (z_j - p_j / 2) - <eta, z> + |eta|^2 / 2, p = sparsemax(z).

    Convex, at least 0, with gradient p - eta. For one label c it is 0 once z_c exceeds every other
    score by 1.
    Source: Martins & Astudillo 2016, section 3.2 (one label) and 3.4 (several); called huber loss
    in Balazy et al. 2023, table 1.

    Args:
        scores: z, (..., n), floating point. -inf acts as a mask; NaN or +inf gives NaN.
        target: the class of every row, (...), integers in [0, n), -100 for a row that does not
            count; or label weights y >= 0, (..., n), of any real dtype, with eta = y / |y|_1. It
            gets no gradient.
        mask: boolean, True = takes part, broadcastable to scores.
        reduction: "mean" over the rows that count (NaN if none does), "sum", or "none": (...).

    Returns:
        (), or (...) with "none", in at least float32. A row without labels has loss 0 and counts; a
        fully masked one has loss 0 and does not count. A label with score -inf gives inf. There is
        no second derivative: p is held fixed.

    Raises:
        ValueError: mismatched shapes, an unknown reduction; on the CPU, where checking does not
            synchronise, also a class out of range, a weight that is negative or not finite, and a
            label at a masked class.
        TypeError: scores not floating point, mask not boolean, classes not integers.
    """
    rows = labelled_rows(scores, target, mask)
    p = sparsemax(rows.scores, mask=rows.valid)
    return rows.reduced(_fenchel_young(rows, p, 2.0), reduction)


def entmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: Value = ALPHA.default,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """L = <p - eta, z> + H(p) - H(eta), p = entmax(z), H(p) = (1 - sum_j p_j^a) / (a (a - 1)).

    The Fenchel-Young loss of Tsallis' entropy: convex, at least 0, with gradient p - eta; alpha = 2
    is `sparsemax_loss`, alpha = 1 is KL(eta || softmax), for one label -log p_c.
    Source: Peters et al. 2019, eq. 6-7; Blondel et al. 2020.

    Args:
        scores, target, mask, reduction: as `sparsemax_loss`, as are returns and errors.
        alpha: in [1, 2]; a float or a tensor broadcastable to the rows, with its gradient.

    Raises:
        ValueError: alpha out of range.
    """
    rows = labelled_rows(scores, target, mask)
    p = entmax(rows.scores, alpha, mask=rows.valid)
    return rows.reduced(_fenchel_young(rows, p, alpha), reduction)


def _fenchel_young(rows: Rows, p: Tensor, alpha: Value) -> Tensor:
    """<p - eta, z> + H(p) - H(eta), whose gradient at a fixed p is exact (envelope theorem)."""
    p, shifted = p.detach(), rows.shifted
    gained = (p * shifted.masked_fill(p == 0, 0.0)).sum(-1) + _tsallis(p, alpha)
    if isinstance(rows.labels, OneLabel):
        return gained - rows.labels.dot(shifted)
    return gained - rows.labels.dot(shifted) - _tsallis(rows.labels.eta, alpha)


def _tsallis(p: Tensor, alpha: Value) -> Tensor:
    """H(p) = -sum p (p^e - 1) / e / (1 + e), e = alpha - 1, which is -sum p log p at e = 0."""
    e = torch.as_tensor(alpha, dtype=p.dtype, device=p.device).unsqueeze(-1) - 1
    log_p = p.masked_fill(p == 0, 1.0).log()
    y = e * log_p
    small = y.abs() < 1e-2
    # (p^e - 1) / e = log p * expm1(y) / y; the series is truncated at float64 precision
    series = 1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5 * (1 + y / 6 * (1 + y / 7)))))
    far = y.masked_fill(small, 1.0)
    slope = log_p * torch.where(small, series, torch.expm1(far) / far)
    return -(p * slope).sum(-1) / (1 + e).squeeze(-1)

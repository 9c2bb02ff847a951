"""Losses for several labels per row: hinges over pairs of classes, and the number of labels."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_attn.functional import r_softmax, t_softmax
from sparse_attn.losses.row_blocks import Rows, check_scores, labelled_rows, reduce
from sparse_attn.losses.targets import check_weights
from sparse_attn.mappings.base import INF, Value, per_row, widened
from sparse_attn.mappings.projection import LAM, Q, sums


def sparsegen_hinge_loss(
    scores: Tensor,
    target: Tensor,
    lam: Value = LAM.default,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The hinge of sparsegen-lin, on the scores x = z / (1 - lam).

    L = sum_{i < j, both labels} |eta_i - eta_j - (x_i - x_j)|
        + sum_{i label, j not} max(0, eta_i - (x_i - x_j))

    Convex, at least 0, and 0 only if sparsegen(z, lam) = eta; lam = 0 is the hinge loss of
    sparsemax. Takes O(n log n) time and O(n) memory per row.
    Source: Laha et al. 2018, section 4.

    Args:
        scores, target, mask, reduction: as `sparsemax_loss`, as are returns and errors.
        lam: in (-inf, 1); a float or a tensor broadcastable to the rows, with its gradient.

    Raises:
        ValueError: lam out of range.
    """
    rows = labelled_rows(scores, target, mask)
    x = rows.shifted / (1 - per_row(lam, LAM, rows.scores))
    return rows.reduced(_hinge(rows, x, rows.eta), reduction)


def sparsehourglass_loss(
    scores: Tensor,
    target: Tensor,
    q: Value = Q.default,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The hinge of sparsehourglass, with a = (1 + n q) / (|sum z| + n q) of its mapping.

    L = sum_{i < j, both labels} |(eta_i - eta_j)/a - (z_i - z_j)|
        + sum_{i label, j not} max(0, eta_i/a - (z_i - z_j))

    At least 0, and 0 only if sparsehourglass(z, q) = eta; convex if all labels weigh the same. The
    gradient goes through a as well; n and the sum are over valid classes. Takes O(n log n) time and
    O(n) memory per row.
    Source: Laha et al. 2018, section 4.

    Args:
        scores, target, mask, reduction: as `sparsemax_loss`, as are returns and errors.
        q: in [0, inf); a float or a tensor broadcastable to the rows, with its gradient.

    Raises:
        ValueError: q out of range.
    """
    rows = labelled_rows(scores, target, mask)
    z = rows.scores
    _, total, size, unit = sums(z, rows.valid, per_row(q, Q, z))
    inverse = (total.abs() + size * unit) / (1 + size) / unit  # 1/a
    temperature = inverse.clamp(max=torch.finfo(z.dtype).max)
    return rows.reduced(_hinge(rows, rows.shifted, rows.eta * temperature), reduction)


def r_softmax_multilabel_loss(
    scores: Tensor,
    target: Tensor,
    r: Value,
    *,
    gradient: str = "exact",
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """L = |y * (p - eta)|^2 + sum_{y_i = 1, y_j = 0} max(0, eta_i - (z_i - z_j)), p = r_softmax.

    At least 0. Pairs are summed, not averaged.
    Source: Balazy et al. 2023, eq. 4.

    Args:
        scores, mask, reduction: as `sparsemax_loss`, as are returns and errors.
        target: as `sparsemax_loss`, with weights y that are 0 or 1.
        r: in [0, 1]; a float or a tensor broadcastable to the rows, with its gradient. For k labels
            the paper uses 1 - k/n.
        gradient: gradient of p, as `r_softmax`.

    Raises:
        ValueError: r out of range, an unknown `gradient`; on the CPU also a weight that is neither
            0 nor 1.
    """
    rows = labelled_rows(scores, target, mask, binary=True)
    p = r_softmax(rows.scores, r, gradient=gradient, mask=rows.valid)
    return rows.reduced(_matched(rows, p), reduction)


def t_softmax_multilabel_loss(
    scores: Tensor,
    target: Tensor,
    t: Value,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`r_softmax_multilabel_loss` with p = t_softmax(z, t), for a learned or predicted t.

    Source: Balazy et al. 2023, eq. 1 and 4.

    Args:
        scores, target, mask, reduction: as `r_softmax_multilabel_loss`, as are returns and errors.
        t: in [0, inf]; a float or a tensor broadcastable to the rows, with its gradient.

    Raises:
        ValueError: t out of range.
    """
    rows = labelled_rows(scores, target, mask, binary=True)
    p = t_softmax(rows.scores, t, mask=rows.valid)
    return rows.reduced(_matched(rows, p), reduction)


def label_count_loss(count_logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """-log softmax(count_logits)_k, in nats, k = sum_i y_i the number of labels, which may be 0.

    Source: Balazy et al. 2023, table 1 (the number of labels, predicted, gives r = 1 - k/n).

    Args:
        count_logits: (..., n + 1), floating point; class k stands for k labels.
        target: y, (..., n), 0 or 1, of any real dtype.
        reduction: "mean" (NaN if there are no rows), "sum", or "none": (...).

    Returns:
        (), or (...) with "none", in at least float32.

    Raises:
        ValueError: mismatched shapes, an unknown reduction; on the CPU also y that is neither 0 nor
            1.
        TypeError: count_logits not floating point.
    """
    check_scores(count_logits, "count_logits")
    expected = (*count_logits.shape[:-1], count_logits.shape[-1] - 1)
    if target.shape != expected:
        raise ValueError(
            f"target: expected shape {expected}, one class fewer than count_logits, got "
            f"{tuple(target.shape)}"
        )
    if target.device.type == "cpu":
        check_weights(target, binary=True)
    counts = (target != 0).sum(-1, keepdim=True)
    losses = -widened(count_logits).log_softmax(-1).gather(-1, counts).squeeze(-1)
    return reduce(losses, losses.numel(), reduction)


def _hinge(rows: Rows, x: Tensor, margins: Tensor) -> Tensor:
    """Sum both kinds of pairs: non-labels have margin 0, and pairs of labels occur in both orders.

    The two orders give the absolute value.
    """
    return _pair_hinge(margins - x, rows.eta > 0, rows.valid)


def _matched(rows: Rows, p: Tensor) -> Tensor:
    y = rows.eta > 0
    apart = (p - rows.eta).masked_fill(~y, 0.0).square().sum(-1)
    return apart + _pair_hinge(rows.eta - rows.shifted, y, rows.valid & ~y)


def _pair_hinge(d: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """sum of max(0, d_i - d_j) over i in left and j in right, (..., n) -> (...).

    Piecewise linear in d. The slope of an entry of left is the number of entries of right below it,
    that of an entry of right minus the number of entries of left above it. A tie has slope 0, like
    max(0, 0).
    """
    # half of the largest number, so that differences stay finite
    most = torch.finfo(d.dtype).max / 2
    d = d.clamp(-most, most)
    fixed = d.detach()
    below = _count(fixed, right, at_most=False)
    above = left.sum(-1, keepdim=True) - _count(fixed, left, at_most=True)
    slope = left * below - right * above
    # the slopes of a row sum to 0, so the top label may be subtracted, which keeps the terms small
    top = fixed.masked_fill(~left, -INF).amax(-1, keepdim=True)
    return (slope * (d - top.masked_fill(top == -INF, 0.0))).sum(-1)


def _count(d: Tensor, members: Tensor, *, at_most: bool) -> Tensor:
    """Count the members of its row below each entry, or at most equal to it, (..., n)."""
    ordered = d.masked_fill(~members, INF).sort(-1).values
    return torch.searchsorted(ordered, d.contiguous(), right=at_most)

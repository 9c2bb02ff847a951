"""Weighted softmax, and the sparse mappings built on it: t-softmax and r-softmax."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from sparse_attn.mappings.base import (
    INF,
    Value,
    above_zero,
    aligned,
    on_rows,
    shift_to_top,
    whole_below,
)
from sparse_attn.mappings.specs import Dial, ParameterSpec, library_spec

WEIGHTS = ParameterSpec("weights", default=1.0, low=0.0, high_open=True, per_entry=True)
T = ParameterSpec("t", default=1.0, low=0.0)
R = ParameterSpec("r", default=0.15, low=0.0, high=1.0)
GRADIENTS = ("exact", "detached")
BALAZY = "Balazy et al. 2023"


def _entry_weights(weights: Value, scores: Tensor, dim: int) -> Tensor:
    if not isinstance(weights, Tensor):
        WEIGHTS.check(weights)
        # a constant cancels, for any size in the dtype of scores
        weights = scores.new_full((1,), 1.0 if weights > 0 else 0.0)
    return aligned("weights", weights, scores).movedim(dim, -1)


def _weighted_rows(rows: Tensor, valid: Tensor, *, weights: Tensor, log: bool) -> Tensor:
    weights = weights.to(rows).masked_fill(~valid, 0.0)
    counted = weights != 0
    # |w|, so that the formula is linear in w on both sides of 0
    log_weights = weights.masked_fill(~counted, 1.0).abs().log()
    shifted = rows - _top(rows.detach(), counted)
    shifted = shifted - _top((shifted + log_weights).detach(), counted)
    # a weight of 0 on a larger score: its slope needs e^s, which must not overflow
    shifted = shifted.where(counted, shifted.clamp(max=40.0))
    # w e^s <= 1, though e^s may overflow
    root = (shifted / 2).exp()
    weighted = weights * root * root
    total = weighted.sum(-1, keepdim=True)
    total = total.masked_fill(total == 0, 1.0)
    if not log:
        return weighted / total
    return (shifted + log_weights - total.log()).masked_fill(~counted, -INF)


def _top(rows: Tensor, counted: Tensor) -> Tensor:
    """Return the largest counted entry of each row, 0 if there is none."""
    top = rows.masked_fill(~counted, -INF).amax(-1, keepdim=True)
    return top.masked_fill(top == -INF, 0.0)


def _t_softmax_rows(rows: Tensor, valid: Tensor, t: Tensor, *, log: bool) -> Tensor:
    return _normalize_within(shift_to_top(rows, valid), valid, t, log)


def _normalize_within(shifted: Tensor, valid: Tensor, t: Tensor, log: bool) -> Tensor:
    """Normalise with weights relu(1 + s/t), which are relu(s + t) up to a factor that cancels.

    In this form the largest weight is 1, t = inf is softmax and t = 0 keeps only the maxima.
    """
    # below the smallest normal number 1/t overflows
    t = t.masked_fill(t < torch.finfo(t.dtype).tiny, 0.0)
    inside = (shifted > -t) & valid
    # entries outside are not divided, because the slope may be infinite there
    ratio = shifted.masked_fill(~inside, 0.0) / t.masked_fill(t == 0, 1.0)
    top = ((shifted == 0) & valid).to(shifted)
    weights = torch.where(inside, 1 + ratio, top)
    weighted = weights * shifted.exp()
    total = weighted.sum(-1, keepdim=True)
    if not log:
        return weighted / total
    positive = weights != 0
    log_weights = weights.masked_fill(~positive, 1.0).log()
    return (shifted + log_weights - total.log()).masked_fill(~positive, -INF)


def _r_softmax_rows(rows: Tensor, valid: Tensor, r: Tensor, *, gradient: str, log: bool) -> Tensor:
    shifted = shift_to_top(rows, valid)
    t = -_quantile(shifted, valid, r)
    return _normalize_within(shifted, valid, t.detach() if gradient == "detached" else t, log)


def _quantile(rows: Tensor, valid: Tensor, r: Tensor) -> Tensor:
    """Linear-interpolation quantile of the valid entries, all <= 0, (..., n) -> (..., 1).

    Sorts, because `torch.quantile` refuses 16 million elements and half precision, and has no mask.
    """
    ordered = rows.masked_fill(~valid, 1.0).sort(-1).values
    last = (valid.sum(-1, keepdim=True) - 1).clamp(min=0)
    position = r * last
    # NaN makes the row NaN later, but must still be an index
    low = whole_below(position.nan_to_num()).long().clamp(max=last)
    high = (low + 1).clamp(max=last)
    low_score, high_score = ordered.gather(-1, low), ordered.gather(-1, high)
    above = (position.detach() - low).clamp(min=0.0)
    return torch.lerp(low_score, high_score, above + (position - position.detach()))


def weighted_softmax(
    scores: Tensor, weights: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p_i = w_i e^{z_i} / sum_j w_j e^{z_j}.

    Source: Balazy et al. 2023, section 3.

    Args:
        weights: w in [0, inf), a float or a tensor broadcastable to scores, whose values are not
            checked. A row whose weights are all 0 gives zeros.

    Other arguments, returns and errors as `softmax`; ValueError also for a number out of range.
    """
    weights = _entry_weights(weights, scores, dim)
    return on_rows(_weighted_rows, scores, mask=mask, dim=dim, log=log, weights=weights)


def t_softmax(
    scores: Tensor, t: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p_i = w_i e^{z_i} / sum_j w_j e^{z_j} with w_i = max(0, z_i - max z + t).

    Exactly 0 where z_i <= max z - t. t = inf is softmax, t = 0 keeps the maxima, in equal shares.
    Source: Balazy et al. 2023, eq. 1.

    Args:
        t: in [0, inf], in units of the scores; a float or a tensor broadcastable to the shape of
            the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for t out of range.
    """
    return on_rows(_t_softmax_rows, scores, t, mask=mask, dim=dim, log=log, checks=(T,))


def r_softmax(
    scores: Tensor,
    r: Value,
    *,
    gradient: str = "exact",
    mask: Tensor | None = None,
    dim: int = -1,
    log: bool = False,
) -> Tensor:
    """t-softmax with t = max z - Q(z, r): a share r of the valid positions gets exactly 0.

    Q is the linear-interpolation quantile over the n valid positions of the row, so without ties
    floor(r (n - 1)) + 1 of them are 0 for r < 1: exactly k for r = k/n. r = 1 keeps the maxima, in
    equal shares. r = 0 is not softmax: it drops the minimum, as in the paper.
    Source: Balazy et al. 2023, eq. 3.

    Args:
        r: in [0, 1]; a float or a tensor broadcastable to the shape of the rows.
        gradient: "exact", or "detached" for the authors' code, which holds t constant.

    Other arguments, returns and errors as `softmax`; ValueError also for r out of range or an
    unknown `gradient`.
    """
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient={gradient!r}: expected one of {', '.join(GRADIENTS)}")
    return on_rows(
        _r_softmax_rows, scores, r, mask=mask, dim=dim, checks=(R,), gradient=gradient, log=log
    )


def _t_at(u: float) -> float:
    """Dial of t-softmax, from 100 to 0.01 in the unit of the scores."""
    return 10 ** (2 - 4 * u)


_library = partial(library_spec, zeros=True, translation_invariant=True)
_within = partial(_library, family="threshold", multilabel_only=("r-softmax",))
SPECS = (
    _library(weighted_softmax, WEIGHTS, dense=above_zero, source=f"{BALAZY}, section 3"),
    _within(
        t_softmax,
        T,
        dial=Dial("t", _t_at),
        predicts="t",
        source=f"{BALAZY}, eq. 1",
    ),
    _within(
        r_softmax,
        R,
        dial=Dial("r", float),
        predicts="r",
        source=f"{BALAZY}, eq. 3",
    ),
)

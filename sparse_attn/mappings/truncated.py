"""Softmax over only the largest scores: top-k, top-p, threshold-softmax and max-gap."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from sparse_attn.mappings.base import INF, Value, on_rows, shift_to_top, whole_below
from sparse_attn.mappings.specs import Dial, ParameterSpec, library_spec

K = ParameterSpec("k", default=16.0, low=1.0, learnable=False)
P = ParameterSpec("p", default=0.9, low=0.0, high=1.0, learnable=False)
LAM = ParameterSpec("lam", default=0.01, low=0.0, high=1.0, learnable=False)
A = ParameterSpec("a", default=1.0, low=0.0, high_open=True, learnable=False)


def softmax_where(keep: Tensor, rows: Tensor, log: bool) -> Tensor:
    """Softmax, or its logarithm, over the positions to keep."""
    kept = rows.masked_fill(~keep, -INF)
    return kept.log_softmax(-1) if log else kept.softmax(-1)


def _top_k_rows(rows: Tensor, valid: Tensor, k: Tensor, *, log: bool) -> Tensor:
    """Keep scores not below the k-th largest valid one."""
    ordered = rows.detach().masked_fill(~valid, -INF).sort(-1, descending=True).values
    n = rows.shape[-1]
    # a NaN k makes the row NaN later, but must still be an index
    place = -whole_below(-k.nan_to_num(1.0).clamp(max=n)).long() - 1
    place = place.expand(*rows.shape[:-1], 1)
    return softmax_where((rows >= ordered.gather(-1, place)) & valid, rows, log)


def top_k_softmax(
    scores: Tensor, k: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """Softmax over the ceil(k) largest valid scores, exactly 0 elsewhere; ties with the k-th stay.

    Equal to softmax if k is at least the number of valid positions. k gets no gradient.
    Source: Gupta et al. 2021 (arXiv 2106.06899); a control for truncation without reweighting.

    Args:
        k: in [1, inf]; a float, so that a schedule can move it, or a tensor broadcastable to the
            shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for k out of range.
    """
    return on_rows(_top_k_rows, scores, k, mask=mask, dim=dim, log=log, checks=(K,))


def _shares(rows: Tensor, valid: Tensor) -> Tensor:
    return rows.detach().masked_fill(~valid, -INF).softmax(-1)


def _top_p_rows(rows: Tensor, valid: Tensor, p: Tensor, *, log: bool) -> Tensor:
    """Keep shares not below the last one that the mass p needs."""
    shares = _shares(rows, valid)
    ordered = shares.sort(-1).values
    # a share is needed while the shares from it down exceed 1 - p: the sum over small shares is
    # exact for p near 1
    needed = (ordered.cumsum(-1) > 1 - p) | (p >= 1)
    last = (~needed).sum(-1, keepdim=True).clamp(max=rows.shape[-1] - 1)
    return softmax_where((shares >= ordered.gather(-1, last)) & valid, rows, log)


def top_p_softmax(
    scores: Tensor, p: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """Softmax over the fewest largest scores whose softmax shares sum to at least p.

    Exactly 0 elsewhere; scores equal to the last one kept stay. p = 1 is softmax, p = 0 keeps the
    maxima. p gets no gradient.
    Source: Lin et al. 2025 (Twilight, arXiv 2502.02770); nucleus sampling, Holtzman et al. 2020.

    Args:
        p: in [0, 1]; a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for p out of range.
    """
    return on_rows(_top_p_rows, scores, p, mask=mask, dim=dim, log=log, checks=(P,))


def _threshold_rows(rows: Tensor, valid: Tensor, lam: Tensor, *, log: bool) -> Tensor:
    shares = _shares(rows, valid)
    keep = (shares >= lam) | (shares == shares.amax(-1, keepdim=True))
    return softmax_where(keep & valid, rows, log)


def threshold_softmax(
    scores: Tensor, lam: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """Softmax over the scores whose softmax shares are at least lam, exactly 0 elsewhere.

    The maxima always stay. lam = 0 is softmax. lam gets no gradient.
    Source: none; serving engines compare with the maximum instead, as `max_gap` does.

    Args:
        lam: in [0, 1]; a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for lam out of range.
    """
    return on_rows(_threshold_rows, scores, lam, mask=mask, dim=dim, log=log, checks=(LAM,))


def _max_gap_rows(rows: Tensor, valid: Tensor, a: Tensor, *, log: bool) -> Tensor:
    shifted = shift_to_top(rows.detach(), valid)
    gap = (a / valid.sum(-1, keepdim=True)).log().clamp(max=0.0)
    return softmax_where((shifted >= gap) & valid, rows, log)


def max_gap(
    scores: Tensor, a: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """Softmax over the scores z >= max z + log(a / n), exactly 0 elsewhere; n valid positions.

    So the least probability that is not 0 is at least a / n of the largest one, for a <= n. The
    maxima always stay, and a = 0 is softmax. A sink counts in n. a gets no gradient.
    Source: Yuan et al. 2025 (BLASST, arXiv 2512.12087), the "skip softmax" of TensorRT-LLM, for
    each score instead of tiles of scores.

    Args:
        a: in [0, inf); a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for a out of range.
    """
    return on_rows(_max_gap_rows, scores, a, mask=mask, dim=dim, log=log, checks=(A,))


def _k_at(u: float) -> float:
    return 1024 ** (1 - u)


def _p_at(u: float) -> float:
    return 1 - u


def _lam_at(u: float) -> float:
    """Dial of threshold-softmax, from 10^-6 to 1."""
    return 10 ** (6 * (u - 1))


def _a_at(u: float) -> float:
    """Dial of max-gap, from 10^-6 to 10^4."""
    return 10 ** (10 * u - 6)


_library = partial(library_spec, zeros=True, translation_invariant=True)
SPECS = (
    _library(
        top_k_softmax,
        K,
        dial=Dial("k", _k_at),
        source="control: zeros without reweighting; Gupta et al. 2021",
    ),
    _library(top_p_softmax, P, dial=Dial("p", _p_at), family="truncated", source="Lin et al. 2025"),
    _library(
        threshold_softmax,
        LAM,
        dial=Dial("lam", _lam_at),
        family="truncated",
        source="no paper",
    ),
    _library(max_gap, A, dial=Dial("a", _a_at), family="truncated", source="Yuan et al. 2025"),
)

"""Learned monotone mappings p = softmax(f(z)): piecewise linear (PLIF), and a monotone network."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.mappings.base import MappingSpec, ParameterSpec, on_rows, softplus_inverse
from sparse_attn.mappings.pointwise import normalize

BOUND = ParameterSpec(
    "bound", default=20.0, low=0.0, low_open=True, high_open=True, learnable=False
)
KNOTS = ParameterSpec("knots", default=1000, low=1, high_open=True)
UNITS = ParameterSpec("units", default=64, low=1, high_open=True)
GANEA = "Ganea et al. 2019"


def _plif_function(z: Tensor, raw_slopes: Tensor, bound: float) -> Tensor:
    """f(z) = s_0 l_0 + d sum_{j<i} s_j + s_i (z - l_i), with knots l_i = -T + i d, d = 2T/K."""
    slopes = F.softplus(raw_slopes.to(z))  # [K]
    width = 2 * bound / len(slopes)
    heights = width * (slopes.cumsum(0) - slopes) - slopes[0] * bound  # [K], f at the left knots
    # NaN has no bin; the score itself carries it on
    bins = ((z.detach().nan_to_num() + bound) / width).floor().clamp(0, len(slopes) - 1).long()
    return heights[bins] + slopes[bins] * (z - (bins.to(z) * width - bound))


def _monotone_function(z: Tensor, raw_gain: Tensor, raw_slope: Tensor, offset: Tensor) -> Tensor:
    """f(z) = sum_k v_k sigma(u_k z + b_k), v = softplus(raw_gain), u = softplus(raw_slope)."""
    gain, slope = F.softplus(raw_gain.to(z)), F.softplus(raw_slope.to(z))  # [K]
    hidden = torch.sigmoid(z.unsqueeze(-1) * slope + offset.to(z))  # [..., n, K]
    return (hidden * gain).sum(-1)


def plif(
    scores: Tensor,
    raw_slopes: Tensor,
    bound: float = BOUND.default,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """p = softmax(f(z)), f piecewise linear and increasing with K equal bins on [-T, T].

    The slopes are softplus(raw_slopes); beyond +-T the end slopes go on. The constant of f does not
    change p and is left out.
    Source: Ganea et al. 2019, section 4 (PLIF).

    Args:
        scores: any shape, floating point.
        raw_slopes: [K], shared by all rows.
        bound: T > 0, in units of the scores.
        mask, dim, returns, raises: as `softmax`; ValueError also for bound out of range.
    """
    return _plif(scores, raw_slopes, bound, mask, dim, log=False)


def log_plif(
    scores: Tensor,
    raw_slopes: Tensor,
    bound: float = BOUND.default,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """log p of `plif`."""
    return _plif(scores, raw_slopes, bound, mask, dim, log=True)


def _plif(
    scores: Tensor, raw_slopes: Tensor, bound: float, mask: Tensor | None, dim: int, log: bool
) -> Tensor:
    BOUND.check(bound)

    def log_g(z: Tensor) -> Tensor:
        return _plif_function(z, raw_slopes, bound)

    return on_rows(normalize, scores, mask=mask, dim=dim, log_g=log_g, log=log)


def monotone(
    scores: Tensor,
    raw_gain: Tensor,
    raw_slope: Tensor,
    offset: Tensor,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """p = softmax(f(z)), f(z) = sum_k v_k sigma(u_k z + b_k), increasing and bounded.

    v = softplus(raw_gain), u = softplus(raw_slope), b = offset. Costs n K memory a row.
    Source: Ganea et al. 2019, section 3 (monotone network).

    Args:
        scores: any shape, floating point.
        raw_gain, raw_slope, offset: [K], shared by all rows.
        mask, dim, returns, raises: as `softmax`.
    """
    return _monotone(scores, raw_gain, raw_slope, offset, mask, dim, log=False)


def log_monotone(
    scores: Tensor,
    raw_gain: Tensor,
    raw_slope: Tensor,
    offset: Tensor,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """log p of `monotone`."""
    return _monotone(scores, raw_gain, raw_slope, offset, mask, dim, log=True)


def _monotone(
    scores: Tensor,
    raw_gain: Tensor,
    raw_slope: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    dim: int,
    log: bool,
) -> Tensor:
    def log_g(z: Tensor) -> Tensor:
        return _monotone_function(z, raw_gain, raw_slope, offset)

    return on_rows(normalize, scores, mask=mask, dim=dim, log_g=log_g, log=log)


def _plif_weights(knots: float) -> dict[str, Tensor]:
    """Slopes of 1: f(z) = z, so that training starts from softmax."""
    return {"raw_slopes": softplus_inverse(torch.ones(int(knots)))}


def _monotone_weights(units: float, bound: float) -> dict[str, Tensor]:
    """Overlapping steps evenly spaced on [-T, T]: f(z) = z + const inside, up to a ripple."""
    width = 2 * bound / units
    centers = torch.arange(int(units)) * width - bound + width / 2
    gain = torch.full_like(centers, width)
    slope = torch.full_like(centers, 1 / width)
    return {
        "raw_gain": softplus_inverse(gain),
        "raw_slope": softplus_inverse(slope),
        "offset": -centers / width,
    }


SPECS = (
    MappingSpec(
        "plif",
        plif,
        log_plif,
        parameters=(BOUND,),
        weights=_plif_weights,
        log_g=_plif_function,
        options=(KNOTS,),
        source=f"{GANEA}, section 4",
    ),
    MappingSpec(
        "monotone",
        monotone,
        log_monotone,
        weights=_monotone_weights,
        log_g=_monotone_function,
        options=(UNITS, BOUND),
        source=f"{GANEA}, section 3",
    ),
)

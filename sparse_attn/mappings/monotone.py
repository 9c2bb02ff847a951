"""Learned monotone mappings p = softmax(f(z)): piecewise linear (PLIF), and a monotone network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.mappings.base import check_floating, on_rows, softplus_inverse
from sparse_attn.mappings.pointwise import normalize
from sparse_attn.mappings.specs import ParameterSpec, library_spec

BOUND = ParameterSpec(
    "bound", default=20.0, low=0.0, low_open=True, high_open=True, learnable=False
)
KNOTS = ParameterSpec("knots", default=1000, low=1, high_open=True, whole=True)
UNITS = ParameterSpec("units", default=64, low=1, high_open=True, whole=True)
GANEA = "Ganea et al. 2019"


def _plif_function(z: Tensor, raw_slopes: Tensor, bound: float) -> Tensor:
    """f(z) = s_0 l_0 + d sum_{j<i} s_j + s_i (z - l_i), with knots l_i = -T + i d, d = 2T/K."""
    function = _PiecewiseLinear if torch.compiler.is_compiling() else _ForwardPiecewiseLinear
    return function.apply(z, F.softplus(raw_slopes.to(z)), bound)


class _PiecewiseLinear(torch.autograd.Function):
    """`_plif_function` as a function of its slopes [K], K up to 1e6.

    Autograd would send every score's gradient back through two gathers. A slope gets d from each
    score beyond its bin and z - l_i from each score inside, so one sum per bin is enough.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, slopes: Tensor, bound: float) -> Tensor:
        return _interpolate(slopes, *_locate(z, len(slopes), bound), bound)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        z, slopes, ctx.bound = inputs
        ctx.save_for_backward(z, slopes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        z, slopes = ctx.saved_tensors
        bins, inside = _locate(z, len(slopes), ctx.bound)
        for_z = grad * _look_up(slopes, bins)
        if not ctx.needs_input_grad[1]:
            return for_z, None, None
        # in float64, because a bin may get millions of terms that nearly cancel
        zeros, where = torch.zeros_like(slopes, dtype=torch.float64), bins.flatten()
        arrived = zeros.index_add(0, where, grad.reshape(-1).double())  # [K]
        partly = zeros.index_add(0, where, (grad * inside).reshape(-1).double())
        total = arrived.sum()
        passed = (total - arrived.cumsum(0)) * (2 * ctx.bound / len(slopes))
        # f starts at s_0 l_0, l_0 = -T
        start = torch.cat([(-ctx.bound * total).reshape(1), zeros[1:]])
        return for_z, (partly + passed + start).to(slopes), None


class _ForwardPiecewiseLinear(_PiecewiseLinear):
    """`_PiecewiseLinear` with forward mode, which `torch.compile` does not trace."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        _PiecewiseLinear.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def jvp(ctx: Any, z_tangent: Tensor, slopes_tangent: Tensor, _: None) -> Tensor:
        z, slopes = ctx.saved_tensors
        bins, inside = _locate(z, len(slopes), ctx.bound)
        along = _look_up(slopes, bins) * z_tangent
        return along + _interpolate(slopes_tangent, bins, inside, ctx.bound)


def _interpolate(slopes: Tensor, bins: Tensor, inside: Tensor, bound: float) -> Tensor:
    """Compute f at the scores, which is linear in the slopes."""
    width = 2 * bound / len(slopes)
    below = slopes.double().cumsum(0) - slopes  # [K], in float64 for sums of a million terms
    heights = (width * below - slopes[0] * bound).to(inside)  # f at the left knots
    return _look_up(heights, bins) + _look_up(slopes, bins) * inside


def _locate(z: Tensor, knots: int, bound: float) -> tuple[Tensor, Tensor]:
    """Return the bin of every score, and the score's distance from its left knot."""
    width = 2 * bound / knots
    # NaN has no bin; the distance stays NaN
    bins = ((z.detach().nan_to_num() + bound) / width).clamp(0, knots - 1).int()
    return bins, z - (bins.to(z) * width - bound)


def _look_up(table: Tensor, bins: Tensor) -> Tensor:
    """Return table[bins], several times faster on the CPU."""
    return table.index_select(0, bins.flatten()).view_as(bins)


def _monotone_function(z: Tensor, raw_gain: Tensor, raw_slope: Tensor, offset: Tensor) -> Tensor:
    """f(z) = sum_k v_k sigma(u_k z + b_k), v = softplus(raw_gain), u = softplus(raw_slope)."""
    function = _SigmoidSum if torch.compiler.is_compiling() else _ForwardSigmoidSum
    return function.apply(z, F.softplus(raw_gain.to(z)), F.softplus(raw_slope.to(z)), offset.to(z))


class _SigmoidSum(torch.autograd.Function):
    """sum_k v_k sigma(u_k z + b_k) unit by unit, without an (..., n, K) tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, gain: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
        total = torch.zeros_like(z)
        for v, u, b in zip(gain, slope, offset, strict=True):
            total = total + v * torch.sigmoid(u * z + b)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z, gain, slope, offset = ctx.saved_tensors
        for_z, units = torch.zeros_like(z), []
        for v, u, b in zip(gain, slope, offset, strict=True):
            step = torch.sigmoid(u * z + b)
            bent = grad * v * step * (1 - step)
            for_z = for_z + u * bent
            units.append(torch.stack([(grad * step).sum(), (bent * z).sum(), bent.sum()]))
        for_gain, for_slope, for_offset = torch.stack(units, 1)
        return for_z, for_gain, for_slope, for_offset


class _ForwardSigmoidSum(_SigmoidSum):
    """`_SigmoidSum` with forward mode, which `torch.compile` does not trace."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _SigmoidSum.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, z_tangent: Tensor, *units: Tensor) -> Tensor:
        z, gain, slope, offset = ctx.saved_tensors
        total = torch.zeros_like(z)
        for v, u, b, dv, du, db in zip(gain, slope, offset, *units, strict=True):
            step = torch.sigmoid(u * z + b)
            total = total + dv * step + v * step * (1 - step) * (du * z + u * z_tangent + db)
        return total


def plif(
    scores: Tensor,
    raw_slopes: Tensor,
    bound: float = BOUND.default,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
    log: bool = False,
) -> Tensor:
    """p = softmax(f(z)), f piecewise linear and increasing with K equal bins on [-T, T].

    The slopes are softplus(raw_slopes); beyond +-T the end slopes continue. The constant of f does
    not change p and is omitted.
    Source: Ganea et al. 2019, section 4 (PLIF).

    Args:
        raw_slopes: [K], shared by all rows; K may be a million. On a GPU its gradient is summed
            with atomic additions, so its last digits vary between runs.
        bound: T in (0, inf), in units of the scores.

    Other arguments, returns and errors as `softmax`; ValueError also for bound out of range.
    """
    check_floating("raw_slopes", raw_slopes)
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
    log: bool = False,
) -> Tensor:
    """p = softmax(f(z)), f(z) = sum_k v_k sigma(u_k z + b_k), increasing and bounded.

    v = softplus(raw_gain), u = softplus(raw_slope), b = offset. Takes O(n K) time per row.
    Source: Ganea et al. 2019, section 4, eq. 14 (monotone network).

    Args:
        raw_gain, raw_slope, offset: [K], shared by all rows.

    Other arguments, returns and errors as `softmax`.
    """
    for name, value in (("raw_gain", raw_gain), ("raw_slope", raw_slope), ("offset", offset)):
        check_floating(name, value)

    def log_g(z: Tensor) -> Tensor:
        return _monotone_function(z, raw_gain, raw_slope, offset)

    return on_rows(normalize, scores, mask=mask, dim=dim, log_g=log_g, log=log)


def _plif_weights(knots: float) -> dict[str, Tensor]:
    """Initial slopes of 1: f(z) = z, so training starts from softmax."""
    return {"raw_slopes": softplus_inverse(torch.ones(int(knots), dtype=torch.float32))}


def _monotone_weights(units: float, bound: float) -> dict[str, Tensor]:
    """Initial overlapping steps, evenly spaced on [-T, T]: f(z) = z + const, up to a ripple."""
    width = 2 * bound / units
    centers = torch.arange(int(units), dtype=torch.float32) * width - bound + width / 2
    gain = torch.full_like(centers, width)
    slope = torch.full_like(centers, 1 / width)
    return {
        "raw_gain": softplus_inverse(gain),
        "raw_slope": softplus_inverse(slope),
        "offset": -centers / width,
    }


SPECS = (
    library_spec(
        plif,
        BOUND,
        weights=_plif_weights,
        options=(KNOTS,),
        log_g=_plif_function,
        source=f"{GANEA}, section 4",
    ),
    library_spec(
        monotone,
        weights=_monotone_weights,
        options=(UNITS, BOUND),
        log_g=_monotone_function,
        source=f"{GANEA}, section 4, eq. 14",
    ),
)

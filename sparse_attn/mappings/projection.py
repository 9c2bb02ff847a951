"""Projections onto the simplex: sparsemax and its rescaled forms, and alpha-entmax."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparse_attn.mappings.base import INF, Value, log_of, on_rows, shift_to_top
from sparse_attn.mappings.specs import Dial, ParameterSpec, library_spec

LAM = ParameterSpec("lam", default=0.0, high=1.0, low_open=True, high_open=True)
Q = ParameterSpec("q", default=10.0, low=0.0, high_open=True)
ALPHA = ParameterSpec("alpha", default=1.5, low=1.0, high=2.0)
LAHA = "Laha et al. 2018, section 3"


def _sparsemax_rows(rows: Tensor, valid: Tensor, *, log: bool) -> Tensor:
    one = rows.new_ones(1)
    return _sparsemax(rows, valid, one, one, log)


def _sparsegen_rows(rows: Tensor, valid: Tensor, lam: Tensor, *, log: bool) -> Tensor:
    return _sparsemax(rows, valid, 1 - lam, torch.ones_like(lam), log)


def _sparsecone_rows(rows: Tensor, valid: Tensor, q: Tensor, *, log: bool) -> Tensor:
    rows, total, size, unit = sums(rows, valid, q)
    return _sparsemax(rows, valid, (total + size * unit).clamp(min=0) / (1 + size), unit, log)


def _sparsehourglass_rows(rows: Tensor, valid: Tensor, q: Tensor, *, log: bool) -> Tensor:
    rows, total, size, unit = sums(rows, valid, q)
    return _sparsemax(rows, valid, (total.abs() + size * unit) / (1 + size), unit, log)


def sums(rows: Tensor, valid: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """u z, u sum z, n q and u, all finite.

    u is 1 unless the sum, or the terms of a gradient before they are summed, could overflow.
    """
    most, tiny = torch.finfo(rows.dtype).max / 4, torch.finfo(rows.dtype).tiny ** 0.5
    n = rows.shape[-1]
    size = (valid.sum(-1, keepdim=True) * q).clamp(max=most)
    largest = rows.detach().abs().amax(-1, keepdim=True)
    unit = torch.ones_like(largest).masked_fill(largest > most / n, 0.25 / n)
    unit = unit.masked_fill(largest.maximum(size.detach()) < tiny, 1 / tiny)
    rows = rows * unit
    return rows, rows.sum(-1, keepdim=True), size, unit


def _sparsemax(rows: Tensor, valid: Tensor, temperature: Tensor, unit: Tensor, log: bool) -> Tensor:
    """Compute sparsemax(z / temperature); temperature 0 keeps only the maxima, in equal shares."""
    # below the smallest normal number 1 / temperature overflows
    least = torch.finfo(rows.dtype).tiny * unit.clamp(min=1.0)
    temperature = temperature.masked_fill(temperature < least, 0.0)
    p = _project(_scale_below_top(rows, valid, temperature))
    return log_of(p) if log else p


def _scale_below_top(rows: Tensor, valid: Tensor, temperature: Tensor) -> Tensor:
    """Return (z - max z) / temperature, cut off at -1, which no support reaches.

    Constant at temperature 0, where tied maxima keep equal shares that jump when the tie breaks.
    """
    shifted = shift_to_top(rows, valid)
    outside = ((shifted <= -temperature) & (shifted != 0)) | ~valid
    none = temperature == 0
    # entries outside are not divided, because the slope may be infinite there
    scaled = shifted.masked_fill(outside | none, 0.0) / temperature.masked_fill(none, 1.0)
    return scaled.masked_fill(outside, -1.0)


def _project(z: Tensor) -> Tensor:
    """relu(z - tau) with sum 1, for rows with maximum 0 (Martins & Astudillo 2016, alg. 1)."""
    ordered = z.detach().sort(-1, descending=True).values
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    size = (1 + rank * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True).clamp(min=1)
    smallest = ordered.gather(-1, size - 1)
    outside = z < smallest
    # with the support held fixed, tau is linear in z and autograd gives the exact Jacobian
    count = (~outside).sum(-1, keepdim=True)
    # sums of differences stay small if thousands of scores are nearly equal
    excess = (z - smallest).masked_fill(outside, 0.0).sum(-1, keepdim=True)
    tau = smallest + (excess - 1) / count
    return (z - tau).masked_fill(outside, 0.0).clamp(min=0.0)


def _entmax_rows(rows: Tensor, valid: Tensor, alpha: Tensor, *, log: bool) -> Tensor:
    shifted = shift_to_top(rows, valid).masked_fill(~valid, -INF)
    e = alpha - 1
    # log(1 + e x) / e is x to the last digit well before e gets this small
    e = e + (e.clamp(min=torch.finfo(rows.dtype).eps ** 1.5) - e).detach()
    function = _Entmax if torch.compiler.is_compiling() else _ForwardEntmax
    return function.apply(shifted, e, log)


class _Entmax(torch.autograd.Function):
    """p_i = exp_e(s_i - tau), exp_e(x) = (1 + e x)_+^(1/e), e = alpha - 1, rows s with maximum 0.

    In this form alpha = 1 is not a special case: exp_0 = exp and tau = log-sum-exp(s).
    The gradient uses the implicit function tau(s, e): with u = p^(1-e), dp = u (ds - sum u ds / sum
    u), and the same for e (Correia et al. 2019, prop. 1).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(shifted: Tensor, e: Tensor, log: bool) -> Tensor:
        tau = _entmax_threshold(shifted, e)
        log_p = _log_exp(shifted - tau, e)
        return log_p if log else log_p.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        _, e, ctx.log = inputs
        ctx.save_for_backward(output, e)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        output, e = ctx.saved_tensors
        support, log_p, slope = _entmax_slopes(output, e, ctx.log)
        grad = grad.where(support, torch.zeros_like(grad))
        # d log p / dx = p^-e
        inner = grad * ((-e * log_p).exp() if ctx.log else slope)
        pull = inner.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
        grad_shifted = inner - slope * pull
        if not ctx.needs_input_grad[1]:
            return grad_shifted, None, None
        by_e = _log_exp_slope(log_p, e)
        p = log_p.exp().where(support, torch.zeros_like(log_p))
        grad_e = (grad if ctx.log else grad * p) * by_e - pull * p * by_e
        return grad_shifted, grad_e.sum_to_size(e.shape), None


class _ForwardEntmax(_Entmax):
    """`_Entmax` with forward mode, which `torch.compile` does not trace."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        _Entmax.setup_context(ctx, inputs, output)
        ctx.save_for_forward(output, inputs[1])

    @staticmethod
    def jvp(ctx: Any, shifted: Tensor, e_tangent: Tensor, _: None) -> Tensor:
        output, e = ctx.saved_tensors
        support, log_p, slope = _entmax_slopes(output, e, ctx.log)
        by_e = _log_exp_slope(log_p, e) * e_tangent
        p = log_p.exp().where(support, torch.zeros_like(log_p))
        inner = slope * shifted + p * by_e
        tangent = inner - slope * inner.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
        return tangent / p.where(support, torch.ones_like(p)) if ctx.log else tangent


def _entmax_slopes(output: Tensor, e: Tensor, log: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the support of p or log p, log p on it, and u = p^(1-e); 0 outside."""
    support = output > (-INF if log else 0.0)
    log_p = output if log else output.where(support, torch.ones_like(output)).log()
    log_p = log_p.where(support, torch.zeros_like(log_p))
    slope = ((1 - e) * log_p).exp().where(support, torch.zeros_like(log_p))
    return support, log_p, slope


def _entmax_threshold(shifted: Tensor, e: Tensor) -> Tensor:
    """Solve sum_i exp_e(s_i - tau) = 1 for tau in rows with maximum 0, (..., n) -> (..., 1).

    Newton on F(tau) = (sum_i exp_e(s_i - tau))^e, the 1/e-norm of an affine function and so convex
    for 0 < e <= 1: from tau = 0 the iterates rise to the root and never pass it. Steps to rounding
    error for alpha = 2, the slowest: 6 at n = 64, 9 at 2049, 13 at 65536, 14 at 262144.
    """
    n = shifted.shape[-1]
    # a model exported for any length takes the steps of the longest row
    steps = 16 if not isinstance(n, int) else 7 if n <= 64 else 10 if n <= 2048 else 16
    tau = torch.zeros_like(e)
    # at e = 1 the exponent 0 would turn p = 0 into u = 1
    exponent = (1 - e).clamp(min=1e-6)
    for _ in range(steps):
        log_p = _log_exp(shifted - tau, e)
        total = log_p.exp().sum(-1, keepdim=True)
        slope = (log_p * exponent).exp().sum(-1, keepdim=True)  # sum u
        # (F - 1) / F' = (total^e - 1) / e * total^(1-e) / sum u
        tau = tau + torch.expm1(e * total.log()) / e * total.pow(1 - e) / slope
    return tau


def _log_exp(x: Tensor, e: Tensor) -> Tensor:
    """log exp_e(x) = log(1 + e x) / e; -inf from x = -1/e down."""
    return (x * e).clamp(min=-1.0).log1p() / e


def _log_exp_slope(log_p: Tensor, e: Tensor) -> Tensor:
    """d log exp_e(x) / de as a function of l = log exp_e(x): l^2 (1 - e^-y - y) / y^2, y = e l."""
    y = e * log_p
    small = y.abs() < 1e-2
    series = -1 / 2 + y * (1 / 6 - y * (1 / 24 - y * (1 / 120 - y / 720)))
    far = y.masked_fill(small, 1.0)
    return log_p.square() * torch.where(small, series, -(torch.expm1(-far) + far) / far.square())


def sparsemax(
    scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p = argmin over the simplex of ||p - z||^2 = max(0, z - tau(z)); exact zeros.

    Jacobian diag(s) - s s^T / |S| with s the indicator of the support S.
    Source: Martins & Astudillo 2016, alg. 1.
    Arguments, returns and errors as `softmax`.
    """
    return on_rows(_sparsemax_rows, scores, mask=mask, dim=dim, log=log)


def sparsegen(
    scores: Tensor, lam: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p = sparsemax(z / (1 - lam)), sparsegen-lin.

    lam = 0 is sparsemax, lam -> 1 keeps only the maximum, lam -> -inf is uniform.
    Source: Laha et al. 2018, section 3.

    Args:
        lam: in (-inf, 1); a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for lam out of range.
    """
    return on_rows(_sparsegen_rows, scores, lam, mask=mask, dim=dim, log=log, checks=(LAM,))


def sparsecone(
    scores: Tensor, q: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p = sparsemax(a z), a = (1 + n q) / (sum z + n q), n and the sum over valid positions.

    For sum z <= -n q, undefined in the paper, the maxima share, the limit a -> inf, with gradient
    0.
    Source: Laha et al. 2018, section 3.

    Args:
        q: in [0, inf); a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for q out of range.
    """
    return on_rows(_sparsecone_rows, scores, q, mask=mask, dim=dim, log=log, checks=(Q,))


def sparsehourglass(
    scores: Tensor, q: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p = sparsemax(a z), a = (1 + n q) / (|sum z| + n q), n and the sum over valid positions.

    q = 0 is scale-invariant; if sum z is 0 or subnormal as well, the maxima share, with gradient 0;
    q -> inf is sparsemax.
    Source: Laha et al. 2018, section 3.

    Args:
        q: in [0, inf); a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for q out of range.
    """
    return on_rows(_sparsehourglass_rows, scores, q, mask=mask, dim=dim, log=log, checks=(Q,))


def entmax(
    scores: Tensor, alpha: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p_i = max(0, (alpha - 1) z_i - tau)^(1 / (alpha - 1)), tau such that sum p = 1.

    alpha = 1 is softmax, alpha = 2 sparsemax. Larger alpha are refused, because the slope at the
    edge of the support would be infinite.
    Source: Peters et al. 2019, eq. 10; gradient to alpha: Correia et al. 2019, prop. 1.

    Args:
        alpha: in [1, 2]; a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for alpha out of range.
    """
    return on_rows(_entmax_rows, scores, alpha, mask=mask, dim=dim, log=log, checks=(ALPHA,))


def _lam_at(u: float) -> float:
    """Dial of sparsegen, which is sparsemax of the scores times 0.1 at u = 0, times 10 at u = 1."""
    return 1 - 10 ** (1 - 2 * u)


def _alpha_at(u: float) -> float:
    return 1 + u


_library = partial(library_spec, family="projection", zeros=True)
_skipping = partial(_library, translation_invariant=True, kernel={"skips": True})
SPECS = (
    _skipping(
        sparsemax,
        multilabel_only=("sparsegen-hinge",),
        source="Martins & Astudillo 2016, alg. 1",
    ),
    _skipping(
        sparsegen,
        LAM,
        dial=Dial("lam", _lam_at),
        multilabel_only=("sparsegen-hinge",),
        source=LAHA,
    ),
    _library(sparsecone, Q, source=LAHA),
    _library(sparsehourglass, Q, multilabel_only=("sparsehourglass",), source=LAHA),
    _skipping(
        entmax,
        ALPHA,
        dial=Dial("alpha", _alpha_at),
        source="Peters et al. 2019, eq. 10",
    ),
)

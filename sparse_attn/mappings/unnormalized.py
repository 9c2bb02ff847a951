"""Attention functions whose rows need not sum to one: softpick, clipped softmax, sigmoid, relu."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.mappings.base import INF, Value, log_of, on_rows
from sparse_attn.mappings.specs import ParameterSpec, library_spec

GAMMA = ParameterSpec("gamma", default=None, high=0.0, low_open=True)
ZETA = ParameterSpec("zeta", default=1.0, low=1.0, high_open=True)
ALPHA = ParameterSpec("alpha", default=0.25, low=0.0, high_open=True, instead_of="gamma")
BIAS = ParameterSpec("bias", default=None, low_open=True, high_open=True)
EPS = 1e-8  # eps of softpick


def _number(valid: Tensor, rows: Tensor) -> Tensor:
    return valid.sum(-1, keepdim=True).to(rows)


def _softpick_rows(rows: Tensor, valid: Tensor, *, log: bool) -> Tensor:
    # without a score above 0 every weight is 0 for any m
    top = rows.masked_fill(~valid, -INF).amax(-1, keepdim=True).clamp(min=0.0)
    near = rows.abs() < 1
    # e^(z-m) - e^(-m), without cancellation near z = 0
    size = torch.where(
        near,
        torch.expm1(rows.masked_fill(~near, 0.0)) * (-top).exp(),
        (rows - top).exp() - (-top).exp(),
    ).masked_fill(~valid, 0.0)
    total = size.abs().sum(-1, keepdim=True) + EPS
    if not log:
        return F.relu(size) / total
    positive = rows > 0
    rest = torch.log(-torch.expm1(-rows.masked_fill(~positive, 1.0)))  # e^z - 1 = e^z (1 - e^-z)
    return (rows - top + rest - total.log()).masked_fill(~positive, -INF)


def softpick(
    scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p_i = max(0, e^{z_i - m} - e^{-m}) / (sum_j |e^{z_j - m} - e^{-m}| + 1e-8), m = max z.

    Sums to at most one; exactly 0 where z_i <= 0, so a row without a positive score is all zeros.
    Source: Zuhri et al. 2025 (arXiv 2504.20966).
    Arguments, returns and errors as `softmax`, but for the sum.
    """
    return on_rows(_softpick_rows, scores, mask=mask, dim=dim, log=log)


def _clipped_rows(
    rows: Tensor,
    valid: Tensor,
    gamma: Tensor | None,
    zeta: Tensor,
    alpha: Tensor,
    *,
    log: bool,
) -> Tensor:
    low = -alpha / _number(valid, rows) if gamma is None else gamma
    p = rows.masked_fill(~valid, -INF).softmax(-1)
    p = (zeta * p + low * (1 - p)).clamp(0.0, 1.0)  # (zeta - low) p + low may overflow
    return log_of(p) if log else p


def clipped_softmax(
    scores: Tensor,
    gamma: Value | None = None,
    zeta: Value = 1.0,
    alpha: Value = 0.25,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
    log: bool = False,
) -> Tensor:
    """p = clip((zeta - gamma) softmax(z) + gamma, 0, 1); sums to at most one if zeta = 1.

    Exactly 0 where the share is at most -gamma / (zeta - gamma).
    Source: Bondarenko et al. 2023 (arXiv 2306.12929), eq. 4.

    Args:
        gamma: in (-inf, 0]; None for -alpha / n with n the valid positions of the row, so that the
            share of zeros does not depend on the length.
        zeta: in [1, inf).
        alpha: in [0, inf); without effect if gamma is given.

    All three are floats or tensors broadcastable to the shape of the rows. Other arguments, returns
    and errors as `softmax`; ValueError also for a parameter out of range.
    """
    return on_rows(
        _clipped_rows,
        scores,
        gamma,
        zeta,
        alpha,
        mask=mask,
        dim=dim,
        log=log,
        checks=(GAMMA, ZETA, ALPHA),
    )


def _sigmoid_rows(rows: Tensor, valid: Tensor, bias: Tensor | None, *, log: bool) -> Tensor:
    log_p = F.logsigmoid(rows + (-_number(valid, rows).log() if bias is None else bias))
    return log_p if log else log_p.exp()


def sigmoid(
    scores: Tensor,
    bias: Value | None = None,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
    log: bool = False,
) -> Tensor:
    """p_i = sigma(z_i + b), not normalised.

    Source: Ramapuram et al. 2024 (arXiv 2409.04431).

    Args:
        bias: b in (-inf, inf), a float or a tensor broadcastable to the shape of the rows; None for
            -log n with n the valid positions of the row.

    Other arguments, returns and errors as `softmax`, but for the sum; ValueError also for a bias
    that is not finite.
    """
    return on_rows(_sigmoid_rows, scores, bias, mask=mask, dim=dim, log=log, checks=(BIAS,))


def _relu_rows(rows: Tensor, valid: Tensor, *, log: bool) -> Tensor:
    p = F.relu(rows) / _number(valid, rows)
    return log_of(p) if log else p


def relu(scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False) -> Tensor:
    """p_i = max(0, z_i) / n, not normalised, with n the valid positions of the row.

    Source: Wortsman et al. 2023 (arXiv 2309.08586).
    Arguments, returns and errors as `softmax`, but for the sum.
    """
    return on_rows(_relu_rows, scores, mask=mask, dim=dim, log=log)


_library = partial(library_spec, family="free")
SPECS = (
    _library(softpick, mass="at most one", zeros=True, source="Zuhri et al. 2025"),
    _library(
        clipped_softmax,
        GAMMA,
        ZETA,
        ALPHA,
        kernel={"constants": ("zeta",)},
        mass="at most one",
        zeros=True,
        translation_invariant=True,
        source="Bondarenko et al. 2023, eq. 4",
    ),
    _library(sigmoid, BIAS, mass="free", source="Ramapuram et al. 2024"),
    _library(relu, mass="free", zeros=True, source="Wortsman et al. 2023"),
)

"""Pointwise mappings p_i = g(z_i) / sum_j g(z_j), each given by log g."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.mappings.base import INF, Value, above_zero, on_named_rows, on_rows
from sparse_attn.mappings.specs import MappingSpec, ParameterSpec, library_spec

BIAS = ParameterSpec("bias", default=0.0, low_open=True, high_open=True)
EPS = ParameterSpec("eps", default=0.0198, low=0.0, high_open=True)
CENTER = ParameterSpec("center", default=0.0, low_open=True, high_open=True)


def normalize(
    rows: Tensor,
    valid: Tensor,
    *values: Tensor,
    log_g: Callable[..., Tensor],
    log: bool,
) -> Tensor:
    """Compute softmax(log g) over the valid positions of each row (..., n).

    The mask is applied after g, because g(-inf) is not 0 for even functions. log 0 and values too
    large for the dtype are clamped to the last finite number, so that a row in which every g is 0
    becomes uniform instead of 0/0.
    """
    most = torch.finfo(rows.dtype).max
    log_weights = log_g(rows, *values).clamp(-most, most).masked_fill(~valid, -INF)
    if not log:
        return log_weights.softmax(-1)
    log_p = log_weights.log_softmax(-1)
    return log_p.masked_fill(log_p < torch.finfo(log_p.dtype).min / 2, -INF)


def pointwise_spec(
    name: str,
    log_g: Callable[..., Tensor],
    parameters: tuple[ParameterSpec, ...] = (),
    **facts: Any,
) -> MappingSpec:
    """Make the record of p_i = g(z_i) / sum_j g(z_j), with function and log form from log g.

    Args:
        name: registry name.
        log_g: log g of the scores and the parameters, which have shape (1,) or (..., 1).
            Elementwise PyTorch operations, finite at every finite score; the lowest finite number
            where g is 0. Its docstring becomes the mapping's.
        parameters: arguments of log g besides the scores, in order.
        **facts: other fields of `MappingSpec`.
    """
    row_map = partial(normalize, log_g=log_g)
    function = partial(on_named_rows, row_map=row_map, parameters=parameters)
    return MappingSpec(name, function, parameters=parameters, log_g=log_g, **facts)


def _identity(z: Tensor) -> Tensor:
    return z


def _log_sigsoftmax_g(z: Tensor, bias: Value = 0.0) -> Tensor:
    return z + F.logsigmoid(z + bias)


def _log_square_plus(z: Tensor, eps: Value) -> Tensor:
    """log(z^2 + eps) = log s^2 + log((z/s)^2 + eps/s^2), s^2 the larger of z^2 and eps.

    z^2 would overflow. Unlike with a root, the slope in eps is finite at eps = 0.
    """
    eps = eps if isinstance(eps, Tensor) else z.new_full((), eps)
    size = torch.maximum(z.detach().abs(), eps.detach().sqrt())
    nothing = size == 0
    # 1 / size stays finite
    size = size.clamp(min=torch.finfo(z.dtype).tiny)
    rest = ((z / size).square() + eps / size / size).masked_fill(nothing, 1.0)
    return (2 * size.log() + rest.log()).masked_fill(nothing, torch.finfo(z.dtype).min)


def _log_spherical_g(z: Tensor, eps: Value, center: Value) -> Tensor:
    most = torch.finfo(z.dtype).max
    return _log_square_plus((z - center).clamp(-most, most), eps)


def _never_zero(eps: Value, **_: Value) -> bool:
    return above_zero(eps=eps)


def _log_taylor_g(z: Tensor) -> Tensor:
    # 1 + z + z^2/2 = ((z + 1)^2 + 1) / 2
    return _log_square_plus(z + 1, 1.0) - math.log(2)


def _log_relu(z: Tensor) -> Tensor:
    # below the smallest normal number, the slope 1/z of the logarithm overflows
    zero = z < torch.finfo(z.dtype).tiny
    return z.masked_fill(zero, 1.0).log().masked_fill(zero, torch.finfo(z.dtype).min)


def softmax(
    scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p_i = e^{z_i} / sum_j e^{z_j}.

    Source: Bridle 1990.

    Args:
        scores: any shape, floating point.
        mask: boolean, True = takes part, broadcastable to scores.
        dim: the dimension to normalise.
        log: whether to return log p instead, in nats; -inf where p is exactly 0.

    Returns:
        Probabilities, shape and dtype of scores; exactly 0 where masked, all 0 in a row without
        valid positions. A NaN or +inf makes its row NaN.

    Raises:
        TypeError: scores not floating point or mask not boolean.
        ValueError: mask, or a parameter of another mapping, of a shape that does not broadcast.
    """
    return on_rows(normalize, scores, mask=mask, dim=dim, log=log, log_g=_identity)


def sigsoftmax(
    scores: Tensor,
    bias: Value = 0.0,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
    log: bool = False,
) -> Tensor:
    """p_i = e^{z_i} sigma(z_i + b) / sum_j e^{z_j} sigma(z_j + b); not translation-invariant.

    b -> inf gives softmax(z), b -> -inf gives softmax(2z).
    Source: Kanai et al. 2018, eq. 12 (its log-normaliser has the wrong sign); b is learnable.

    Args:
        bias: b in (-inf, inf), added to the scores; a float or a tensor broadcastable to the shape
            of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for a bias that is not finite.
    """
    return on_rows(
        normalize,
        scores,
        bias,
        mask=mask,
        dim=dim,
        log=log,
        checks=(BIAS,),
        log_g=_log_sigsoftmax_g,
    )


def taylor_softmax(
    scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p_i = g(z_i) / sum_j g(z_j) with g(z) = 1 + z + z^2/2 >= 1/2, smallest at z = -1.

    Equal to `spherical_softmax(scores, eps=1.0, center=-1.0)`.
    Source: de Brebisson & Vincent 2016, tables 1 to 6 (Taylor softmax).
    Arguments, returns and errors as `softmax`.
    """
    return on_rows(normalize, scores, mask=mask, dim=dim, log=log, log_g=_log_taylor_g)


def spherical_softmax(
    scores: Tensor,
    eps: Value = EPS.default,
    center: Value = CENTER.default,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
    log: bool = False,
) -> Tensor:
    """p_i = g(z_i) / sum_j g(z_j) with g(z) = (z - center)^2 + eps, even around the center.

    The paper's a z^2 + b z + c, a > 0, with at most one root, has center = -b / (2a) and eps = (4ac
    - b^2) / (4a^2), because a factor of g cancels. eps bounds the slope of the log-likelihood by
    1/sqrt(eps); a row of g = 0 is uniform. With center = 0, eps = 0 is invariant to the scale of z.
    At z = center every gradient to z is 0: do not start there.
    Source: de Brebisson & Vincent 2016, tables 1 and 3 to 6 (spherical softmax).

    Args:
        eps: in [0, inf); a float or a tensor broadcastable to the shape of the rows.
        center: in (-inf, inf), in units of the scores; likewise.

    Other arguments, returns and errors as `softmax`; ValueError also for these out of range.
    """
    return on_rows(
        normalize,
        scores,
        eps,
        center,
        mask=mask,
        dim=dim,
        log=log,
        checks=(EPS, CENTER),
        log_g=_log_spherical_g,
    )


def softmax_abs(
    scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p_i = e^{|z_i|} / sum_j e^{|z_j|}; the slope at z = 0 is taken as 0.

    Source: de Brebisson & Vincent 2016, tables 1 and 5 (softmax abs).
    Arguments, returns and errors as `softmax`.
    """
    return on_rows(normalize, scores, mask=mask, dim=dim, log=log, log_g=torch.abs)


def normalized_relu(
    scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p_i = max(0, z_i) / sum_j max(0, z_j); uniform if no score is positive (0/0).

    Source: Kanai et al. 2018, table 1 (g: ReLU).
    Arguments, returns and errors as `softmax`.
    """
    return on_rows(normalize, scores, mask=mask, dim=dim, log=log, log_g=_log_relu)


def normalized_sigmoid(
    scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p_i = sigma(z_i) / sum_j sigma(z_j).

    Source: Kanai et al. 2018, table 1 (g: Sigmoid).
    Arguments, returns and errors as `softmax`.
    """
    return on_rows(normalize, scores, mask=mask, dim=dim, log=log, log_g=F.logsigmoid)


KANAI = "Kanai et al. 2018"
BREBISSON = "de Brebisson & Vincent 2016"

_library = partial(library_spec, family="pointwise")
SPECS = (
    _library(softmax, log_g=_identity, translation_invariant=True, source="Bridle 1990"),
    _library(sigsoftmax, BIAS, log_g=_log_sigsoftmax_g, source=f"{KANAI}, eq. 12"),
    _library(taylor_softmax, log_g=_log_taylor_g, source=f"{BREBISSON}, tables 1 to 6"),
    _library(
        spherical_softmax,
        EPS,
        CENTER,
        zeros=True,
        dense=_never_zero,
        log_g=_log_spherical_g,
        kernel={"constants": (CENTER.name,)},
        source=f"{BREBISSON}, tables 1 and 3 to 6",
    ),
    _library(softmax_abs, log_g=torch.abs, source=f"{BREBISSON}, tables 1 and 5"),
    _library(normalized_relu, zeros=True, log_g=_log_relu, source=f"{KANAI}, table 1"),
    _library(normalized_sigmoid, log_g=F.logsigmoid, source=f"{KANAI}, table 1"),
)

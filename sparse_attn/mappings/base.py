"""Rules of rows shared by all probability mappings.

A mapping takes a row of scores to a point on the simplex. This module has the shared rules for
masks, dtypes, dimensions and parameters. The mathematics of a mapping is a `RowMap` on rows in the
last dimension, in float32 or float64, with a boolean mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from sparse_attn.mappings.specs import ParameterSpec

Value: TypeAlias = float | Tensor
RowMap: TypeAlias = Callable[..., Tensor]
INF = math.inf


def on_rows(
    row_map: RowMap,
    scores: Tensor,
    *parameters: Value | None,
    mask: Tensor | None,
    dim: int,
    checks: tuple[ParameterSpec, ...] = (),
    log: bool = False,
    **options: Any,
) -> Tensor:
    """Run `row_map(rows, valid, *parameters, log=log, **options)` under the rules of all mappings.

    Masked positions, scores of -inf, and all positions of a row without valid ones get exactly 0
    (-inf in the log form) and no gradient. Computed in at least float32, returned in the dtype of
    `scores`. `checks` has the names and ranges of the parameters.
    """
    rows, valid, values = _prepare(scores, parameters, mask, dim, checks)
    if scores.numel() == 0 and scores.shape[dim] == 0:
        # nothing to compute; learned values stay in the graph
        learned = (p.sum() for p in parameters if isinstance(p, Tensor))
        return sum(learned, start=scores.clone())
    # a row without valid positions is computed as if all were valid, and replaced below
    result = row_map(rows, valid | ~valid.any(-1, keepdim=True), *values, log=log, **options)
    # a NaN or +inf at a valid position makes its row NaN for any mapping, and so does a parameter
    # out of range
    top = rows.detach().amax(-1, keepdim=True)
    spoiled = top - top
    for value in values:
        if value is not None:
            spoiled = spoiled + value.detach().masked_fill(~value.isnan(), 0.0)
    result = result + spoiled
    lowest = torch.finfo(scores.dtype).min
    if log and lowest > torch.finfo(rows.dtype).min:
        # the least float16 is -65504, so a finite log-probability must not round to -inf
        result = torch.where(result == -INF, result, result.clamp(min=lowest))
    result = result.masked_fill(~valid, -INF if log else 0.0)
    return result.to(scores.dtype).movedim(-1, dim)


def on_named_rows(
    scores: Tensor,
    *,
    row_map: RowMap,
    parameters: tuple[ParameterSpec, ...],
    mask: Tensor | None = None,
    dim: int = -1,
    log: bool = False,
    learned: bool = False,
    **values: Any,
) -> Tensor:
    """Run `on_rows` with `parameters` by name, for a `MappingSpec`.

    Args:
        learned: whether `row_map` takes the tensors of a learned mapping instead.

    Raises:
        TypeError: an unknown parameter.
    """
    given = [values.pop(p.name, p.default) for p in parameters]
    if values and not learned:
        takes = ", ".join(p.name for p in parameters) or "no parameters"
        raise TypeError(f"{', '.join(values)}: unknown parameter; expected {takes}")
    return on_rows(
        row_map, scores, *given, mask=mask, dim=dim, checks=parameters, log=log, **values
    )


def _prepare(
    scores: Tensor,
    parameters: tuple[Value | None, ...],
    mask: Tensor | None,
    dim: int,
    checks: tuple[ParameterSpec, ...],
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Return rows last, in at least float32, the boolean mask, and parameters (..., 1) or None."""
    check_floating("scores", scores)
    rows = widened(scores.movedim(dim, -1))
    valid = rows != -INF
    if mask is not None:
        valid = valid & aligned("mask", mask, scores).movedim(dim, -1)
    # 0 under the mask keeps masked NaN and infinities out of values and gradients
    rows = rows.masked_fill(~valid, 0.0)
    values = [
        None if v is None and check.default is None else per_row(v, check, rows)
        for v, check in zip(parameters, checks, strict=True)
    ]
    return rows, valid, values


def as_number(name: str, value: Any) -> float:
    """Return a number, NumPy scalar or 0-d tensor as float; raise TypeError for anything else."""
    try:
        if not isinstance(value, (str, bytes, bool)):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(f"{name}={value!r}: expected a number")


def check_floating(name: str, tensor: object) -> None:
    """Raise TypeError unless `tensor` is one of floating-point numbers."""
    expected = f"{name}: expected a floating-point tensor"
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{expected}, got {type(tensor).__name__}; use torch.as_tensor")
    if not tensor.is_floating_point():
        raise TypeError(f"{expected}, got {tensor.dtype}; use .float()")


def widened(tensor: Tensor) -> Tensor:
    """Cast the tensor to at least float32."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def aligned(name: str, tensor: Tensor, scores: Tensor) -> Tensor:
    """Broadcast `tensor` to the shape of scores; `mask` must also be boolean."""
    if name == "mask":
        check_boolean(tensor, additive="mask == 0")
    try:
        return tensor.broadcast_to(scores.shape)
    except RuntimeError:
        raise ValueError(
            f"{name}: shape {tuple(tensor.shape)} does not broadcast to the shape of scores, "
            f"{tuple(scores.shape)}"
        ) from None


def check_boolean(mask: object, additive: str) -> None:
    """Raise TypeError unless `mask` is boolean; `additive` is the remedy for an additive mask."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask: expected a tensor, got {type(mask).__name__}; use torch.as_tensor")
    if mask.dtype != torch.bool:
        remedy = "`mask.bool()` if 1 = takes part"
        if mask.is_floating_point():
            remedy += f", `{additive}` if it is added to the scores"
        raise TypeError(
            f"mask: expected a boolean tensor, True = takes part, got {mask.dtype}; use {remedy}"
        )


def per_row(value: Value | None, check: ParameterSpec, rows: Tensor) -> Tensor:
    """Return a parameter as a tensor that broadcasts along the rows, (1,) or (..., 1)."""
    # 1e300 is finite in float64, but infinite in float32, which some ranges exclude
    most = torch.finfo(rows.dtype).max
    ends = (-most if check.low_open else -INF, most if check.high_open else INF)
    if not isinstance(value, Tensor):
        try:
            check.check(value)
        except TypeError as error:
            raise TypeError(f"{error}, or a tensor") from None
        # a product keeps a compiled float an input; new_full would make its value a constant of the
        # graph
        return (rows.new_ones(1) * cast(float, value)).clamp(*ends)
    value = value.to(rows)
    # a ValueError would need the values, and so wait for the device
    value = value.masked_fill(~check.contains_all(value), math.nan).clamp(*ends)
    try:
        return value.broadcast_to(rows.shape[:-1]).unsqueeze(-1)
    except RuntimeError:
        raise ValueError(
            f"{check.name}: shape {tuple(value.shape)} does not broadcast to the shape of the "
            f"rows, {tuple(rows.shape[:-1])} (scores without `dim`)"
        ) from None


def above_zero(**arguments: Value) -> bool:
    """Return `MappingSpec.dense` of a mapping whose zeros come from arguments that are 0."""
    return all(bool((a > 0).all()) if isinstance(a, Tensor) else a > 0 for a in arguments.values())


def shift_to_top(rows: Tensor, valid: Tensor) -> Tensor:
    """z - max z over the valid positions of each row: finite, at most 0, and 0 where not valid."""
    top = rows.masked_fill(~valid, -INF).amax(-1, keepdim=True)
    return (rows - top).clamp(min=torch.finfo(rows.dtype).min).masked_fill(~valid, 0.0)


def log_of(p: Tensor) -> Tensor:
    """Return log p, -inf at 0, with finite slopes."""
    zero = p == 0
    return p.masked_fill(zero, 1.0).log().masked_fill(zero, -INF)


def whole_below(product: Tensor) -> Tensor:
    """Return floor(product), or the number above if rounding missed it, as in 0.53 * 100."""
    return (product + product.abs() * torch.finfo(product.dtype).eps).detach().floor()


def log_power(n: Tensor, exponent: Tensor) -> Tensor:
    """Return (log n)^exponent, finite; with n = 1 it is 0 for a positive exponent, and else 1."""
    one = n <= 1
    log_log = n.log().masked_fill(one, 1.0).log()
    power = (exponent * log_log).clamp(max=math.log(torch.finfo(n.dtype).max)).exp()
    return power.masked_fill(one & (exponent > 0), 0.0)


def softplus_inverse(x: Tensor) -> Tensor:
    """Return y with softplus(y) = x, for x > 0."""
    return x + torch.log(-torch.expm1(-x))

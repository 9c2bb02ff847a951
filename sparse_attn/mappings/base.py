"""Rules shared by all probability mappings, and the record that describes one.

A mapping takes a row of scores to a point on the simplex. This module has the shared rules for
masks, dtypes, dimensions and parameters. The mathematics of a mapping is a `RowMap` on rows in the
last dimension, in float32 or float64, with a boolean mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

Value: TypeAlias = float | Tensor
Mass: TypeAlias = Literal["one", "at most one", "free"]
RowMap: TypeAlias = Callable[..., Tensor]
Loss: TypeAlias = Callable[..., Tensor]
Family: TypeAlias = Literal["pointwise", "threshold", "truncated", "projection", "free"]
INF = math.inf
DERIVED: Any = None


@dataclass(frozen=True)
class ParameterSpec:
    """A scalar parameter of a mapping: default and range.

    Attributes:
        name: keyword of the mapping's function and of `Mapping`.
        default: default value; None if each row derives it from its length.
        low, high: ends of the range.
        low_open, high_open: whether that end is excluded.
        per_entry: whether it broadcasts to the scores instead of to their rows.
        learnable: whether gradients reach it.
        whole: whether it is a count.
        instead_of: name of the parameter that it replaces if that is None; otherwise without
            effect.
    """

    name: str
    default: Any
    low: float = -INF
    high: float = INF
    low_open: bool = False
    high_open: bool = False
    per_entry: bool = False
    learnable: bool = True
    whole: bool = False
    instead_of: str | None = None

    @property
    def range(self) -> str:
        """The range in interval notation, such as `[0, 1]` or `(-inf, 1)`."""
        left = "(" if self.low_open else "["
        right = ")" if self.high_open else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"

    def contains(self, value: float) -> bool:
        """Whether the value is in the range; NaN is not."""
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below and not (self.whole and value % 1)

    def contains_all(self, values: Tensor) -> Tensor:
        """Mask of `values`, any shape, in the range; ends too, as learned values round there."""
        return (values >= self.low) & (values <= self.high)

    @property
    def _expected(self) -> str:
        return f"expected a {'whole ' * self.whole}number in {self.range}"

    @property
    def shown_default(self) -> str:
        """Return the default for display: a number, or None."""
        return "None" if self.default is None else f"{self.default:g}"

    def check(self, value: Any) -> None:
        """Raise ValueError if `value` is NaN or outside the range, TypeError if not a number."""
        try:
            inside = self.contains(value)
        except TypeError:
            raise TypeError(f"{self.name}={value!r}: {self._expected}") from None
        if not inside:
            raise ValueError(
                f"{self.name}={value} is out of range: {self._expected}; "
                f"the default is {self.shown_default}"
            )


@dataclass(frozen=True)
class Dial:
    """The parameter that sets a mapping's share of zeros.

    Attributes:
        parameter: name of the parameter.
        value: maps u in [0, 1] to the parameter's value; zeros do not decrease with u. A
            module-level function, so that a model can be pickled.
    """

    parameter: str
    value: Callable[[float], float]


@dataclass(frozen=True)
class Kernel:
    """Description of a mapping for the fused implementations.

    Attributes:
        name: name of the kernel.
        family: shared code: "pointwise" needs only the sum of a row, "threshold" also its maximum
            and a threshold, "truncated" its maximum and the scores near it, "projection" the
            solution of an equation, "free" specific statistics, for rows that need not sum to one.
        parameter: name of its one scalar parameter.
        constants: names of parameters that must have default values.
        scaled: whether the scores are first multiplied by the factor of `scaled-NAME`.
        skips: whether scores outside the support have neither a share nor a slope, so that tiles
            without support can be skipped.
    """

    name: str
    family: Family
    parameter: str | None = None
    skips: bool = False
    constants: tuple[str, ...] = ()
    scaled: bool = False


@dataclass(frozen=True)
class MappingSpec:
    """Record of a mapping, with all that the library knows about it.

    Attributes:
        name: registry name, such as `r-softmax`.
        function: `(scores, *, mask=None, dim=-1, log=False, **parameters)`, returns probabilities,
            with log=True their logarithms, -inf at exact zeros.
        log_function: returns the logarithms, if `function` takes no `log`.
        parameters: scalar parameters, fixed, scheduled or learned.
        weights: for a learned function: `(**options) -> {argument: Tensor}`, the initial value of
            every tensor argument of `function`. Such a mapping is always learned.
        options: the keyword arguments of `weights`.
        mass: sum of a row at the default parameters. Only mappings with mass "one" are
            distributions, which heads and losses need.
        zeros: whether exact zeros can occur at valid positions.
        dial: for a mapping with zeros, the parameter that sets their share; None if it has none.
        dense: for a mapping with zeros, `(**arguments) -> bool`: whether these arguments of
            `function` exclude zeros.
        translation_invariant: whether p(z + c) = p(z).
        log_g: for a pointwise mapping p = g(z) / sum g(z): log g as a function of the scores and
            the other arguments of `function`, in the same order.
        losses: losses by name that train a classifier instead of -log p, the default first:
            `(scores, target, **parameters, mask=None, reduction="mean") -> Tensor`. Those of the
            library's mappings come with `sparse_attn.losses`, which imports the mappings.
        multilabel_only: the `losses` for sets of labels: sums over pairs of classes, which do not
            train one label among thousands.
        predicts: name of the parameter that a multi-label head can predict for each row.
        kernel: its `Kernel`; None if there is only the reference.
        color: color in figures; None for the next one of the palette.
        source: paper and equation.
    """

    name: str
    function: Callable[..., Tensor]
    log_function: Callable[..., Tensor] = DERIVED
    parameters: tuple[ParameterSpec, ...] = ()
    weights: Callable[..., dict[str, Tensor]] | None = None
    options: tuple[ParameterSpec, ...] = ()
    mass: Mass = "one"
    zeros: bool = False
    dial: Dial | None = None
    dense: Callable[..., bool] | None = None
    translation_invariant: bool = False
    log_g: Callable[..., Tensor] | None = None
    losses: dict[str, Loss] = field(default_factory=dict, hash=False)
    multilabel_only: Collection[str] = field(default=(), hash=False)
    predicts: str | None = None
    kernel: Kernel | None = None
    color: str | None = None
    source: str = ""

    def __post_init__(self) -> None:
        # also replaces the log form of another function, which dataclasses.replace copies
        if self.log_function is DERIVED:
            object.__setattr__(self, "log_function", partial(self.function, log=True))

    def __deepcopy__(self, memo: dict[int, Any]) -> MappingSpec:
        return self  # a copy would miss the losses that come later

    def parameter(self, name: str) -> ParameterSpec:
        """Return the parameter of this name."""
        return next(p for p in self.parameters if p.name == name)

    @property
    def own_loss(self) -> Loss | None:
        """Loss that trains one label among many classes; None for -log p, if finite."""
        names = (name for name in self.losses if name not in self.multilabel_only)
        name = next(names, None)
        return None if name is None else self.losses[name]


def library_spec(
    function: Callable[..., Tensor],
    *parameters: ParameterSpec,
    family: Family | None = None,
    kernel: dict[str, Any] | None = None,
    **facts: Any,
) -> MappingSpec:
    """Make the record of a mapping of this library, named after its function.

    Args:
        parameters: parameters of `function`, in its order.
        family: as in `Kernel`; None without a kernel.
        kernel: other fields of `Kernel`.
        **facts: other fields of `MappingSpec`.
    """
    name = function.__name__.replace("_", "-")
    scalar = parameters[0].name if parameters else None
    own = Kernel(name, family, scalar, **(kernel or {})) if family else None
    return MappingSpec(name, function, parameters=parameters, kernel=own, **facts)


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

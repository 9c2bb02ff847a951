"""Records that describe mappings: their parameters, kernels and what else the library knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from torch import Tensor

Mass: TypeAlias = Literal["one", "at most one", "free"]
Loss: TypeAlias = Callable[..., Tensor]
Family: TypeAlias = Literal["pointwise", "threshold", "truncated", "projection", "free"]
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
    low: float = -math.inf
    high: float = math.inf
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

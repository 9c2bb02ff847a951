"""Mappings made of a plain function of rows, which is checked when it is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sparse_attn.mappings.base import INF, log_of, on_named_rows
from sparse_attn.mappings.specs import MappingSpec, ParameterSpec

RowFunction: TypeAlias = Callable[..., Tensor]
VALID = "valid"
HANDLED = ("mask", "dim", "log")  # by `on_rows`, for every mapping
TOLERANCE = 1e-5


def plain_spec(name: str, function: RowFunction, **facts: Any) -> MappingSpec:
    """Make the record of a function of rows, see `register_mapping`.

    Args:
        **facts: other fields of `MappingSpec`; of `parameters`, those with a range.

    Raises:
        TypeError, ValueError: the function cannot be a mapping; found by calls with random rows.
    """
    if not inspect.isfunction(function):
        raise TypeError(f"mapping={name!r}: expected a function of scores, got {function!r}")
    ranges = {p.name: p for p in facts.pop("parameters", ())}
    arguments = list(inspect.signature(function).parameters.values())[1:]
    named = [argument for argument in arguments if argument.name != VALID]
    if unknown := ranges.keys() - {argument.name for argument in named}:
        raise ValueError(f"parameters: {name} has no argument {', '.join(sorted(unknown))}")
    parameters = tuple(_parameter(argument, ranges.get(argument.name)) for argument in named)
    row_map = partial(
        _rows,
        function=function,
        names=[p.name for p in parameters],
        takes_valid=len(named) < len(arguments),
    )
    made = partial(on_named_rows, row_map=row_map, parameters=parameters)
    for attribute in ("__module__", "__name__", "__doc__"):  # which commands and models show
        setattr(made, attribute, getattr(function, attribute))
    spec = MappingSpec(name, made, parameters=parameters, **facts)
    found = _checked(spec)
    if found["zeros"] and facts.get("zeros") is False:
        raise ValueError(f"zeros=False: {name} gives zeros for some rows; leave it out")
    return replace(spec, **{**found, **facts})


def try_values(spec: MappingSpec, values: dict[str, Any]) -> None:
    """Raise ValueError if a plain function is not finite with these values, for any head."""
    row_map = getattr(spec.function, "keywords", {}).get("row_map")
    if inner := getattr(row_map, "keywords", {}).get("spec"):  # of a derived mapping
        try_values(inner, values)
    given = [p.name for p in spec.parameters if p.name in values]
    if not given or getattr(row_map, "func", None) is not _rows:
        return
    scores, mask = _random_rows()
    heads = (torch.as_tensor(values[n], device="cpu").double().flatten() for n in given)
    for numbers in zip(*torch.broadcast_tensors(*heads), strict=True):
        of_head = dict(zip(given, map(float, numbers), strict=True))
        if not spec.function(scores.detach(), mask=mask, **of_head).isfinite().all():
            shown = ", ".join(f"{name}={value:g}" for name, value in of_head.items())
            raise ValueError(
                f"{shown}: mapping={spec.name!r} is not finite on small random rows; give another "
                "value, or a range in its registration"
            )


def _parameter(argument: inspect.Parameter, given: ParameterSpec | None) -> ParameterSpec:
    """Return the parameter of an argument whose default is a number, by default in (-inf, inf)."""
    name, default = argument.name, argument.default
    if name in HANDLED:
        raise TypeError(f"{name}: handled for every mapping; leave it out of the function")
    by_name = argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)
    if not by_name or isinstance(default, bool) or not isinstance(default, (int, float)):
        raise TypeError(
            f"{argument}: expected a parameter with a number as its default, or `{VALID}`"
        )
    if given is not None and given.default != default:
        raise ValueError(
            f"{name}: default {default} in the function and {given.shown_default} in parameters; "
            "make them equal"
        )
    return given or ParameterSpec(name, float(default), low_open=True, high_open=True)


def _rows(
    rows: Tensor,
    valid: Tensor,
    *values: Tensor,
    function: RowFunction,
    names: list[str],
    takes_valid: bool,
    log: bool,
) -> Tensor:
    """Call the function; masked scores are 0 if it takes `valid`, and -inf if not."""
    parameters = dict(zip(names, values, strict=True))
    if takes_valid:
        p = function(rows, **parameters, valid=valid)
    else:
        p = function(rows.masked_fill(~valid, -INF), **parameters)
    if p.shape != rows.shape:
        raise ValueError(f"expected the shape of the scores, got {tuple(p.shape)}")
    p = p.masked_fill(~valid, 0.0)  # a NaN there would reach the gradient of the logarithm
    return log_of(p) if log else p


@torch.inference_mode(False)  # which also switches gradients on
def _checked(spec: MappingSpec) -> dict[str, bool]:
    """Check a mapping on random rows; return whether they show zeros and translation invariance."""
    scores, mask = _random_rows()
    values = {
        p.name: scores.new_full(scores.shape[:-1], p.default).requires_grad_()
        for p in spec.parameters
        if p.default is not None
    }
    rows = zip(scores.detach().flatten(0, -2), mask.flatten(0, -2), strict=True)
    try:
        p = spec.function(scores, **values)
        masked = spec.function(scores, **values, mask=mask)
        with torch.no_grad():
            shifted = spec.function(scores + 3, **values)
            many = spec.function(_random(1, 4096) * 3)
            alone = torch.cat([spec.function(row[few]) for row, few in rows])
    except Exception as error:
        raise ValueError(
            f"mapping={spec.name!r}: {type(error).__name__}: {error}; expected a function of rows "
            "of scores (..., n), and of parameters as tensors (1,) or (..., 1)"
        ) from error
    if not p.requires_grad:
        raise ValueError(
            f"mapping={spec.name!r}: has no gradient; use PyTorch operations, without detach, "
            "no_grad or NumPy"
        )
    _refuse(spec, p, masked[mask], alone)
    total = p.square().sum() + masked.square().sum()
    slopes = torch.autograd.grad(total, (scores, *values.values()), allow_unused=True)
    if not all(slope is None or slope.isfinite().all() for slope in slopes):
        raise ValueError(
            f"mapping={spec.name!r}: has a gradient that is not finite, such as that of a root at "
            "0, or of a masked score of -inf; avoid it, or add an argument `valid`, with which "
            "masked scores are 0"
        )
    return {
        "zeros": any(bool((each == 0).any()) for each in (p, alone, many)),
        "translation_invariant": _equal(shifted, p),
    }


def _refuse(spec: MappingSpec, p: Tensor, masked: Tensor, alone: Tensor) -> None:
    """Raise ValueError for wrong results.

    Args:
        p: of all rows.
        masked: of the valid scores of masked rows.
        alone: the same scores, of each row in a call of its own and without the others.
    """
    sums, free = p.sum(-1), spec.mass == "free"
    most, least = sums.max() < 1 + TOLERANCE, sums.min() > 1 - TOLERANCE or spec.mass != "one"
    for holds, fault in (
        (
            p.isfinite().all() and alone.isfinite().all(),
            "is not finite for some rows, such as one score, or zeros; return finite probabilities",
        ),
        (free or (p >= 0).all(), "is negative; return probabilities"),
        (
            free or (most and least),
            f"has rows that sum to {sums.min():.4g} to {sums.max():.4g}; return probabilities that "
            "sum to one along the last dimension, or pass mass='at most one' or mass='free'",
        ),
        (
            _equal(alone, masked),
            "gives a row another result among other rows; use dim=-1 throughout. Or it lets masked "
            "scores, which are -inf, change the others; add an argument `valid`, the boolean mask, "
            "and leave out the scores where it is False, which are then 0",
        ),
    ):
        if not holds:
            raise ValueError(f"mapping={spec.name!r}: {fault}")


def _random_rows() -> tuple[Tensor, Tensor]:
    """Return scores (4, 8, 7) of four scales, the first of them ties, and a mask."""
    scores = _random(4, 8, 7)
    for block, scale in zip(scores, (0.0, 0.3, 1.0, 10.0), strict=True):
        block *= scale
    number = torch.arange(8, device="cpu")
    scores[0] += number.view(-1, 1) / 10  # rows of ties, the first of 0
    count = number.remainder(7) + 1
    mask = _random(4, 8, 7).argsort(-1) < count.unsqueeze(-1)
    return scores.requires_grad_(), mask


def _random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)

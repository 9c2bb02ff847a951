"""Mappings in the syntax of the command line: `NAME` or `NAME:parameter=value,...`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

from sparse_attn.mappings import Mapping, get_spec
from sparse_attn.mappings.registry import parameters_of
from sparse_attn.mappings.variants import SINK


def parse_mappings(text: str, option: str) -> dict[str, Mapping]:
    """Parse several mappings, as in `softpick,entmax:alpha=1.5`, by label (`entmax alpha=1.5`).

    `entmax:alpha=1.25/1.5` stands for `entmax:alpha=1.25,entmax:alpha=1.5`.

    Args, errors: as `parse_mapping`; also ValueError for a mapping that is given twice.
    """
    parts: list[str] = []
    for part in text.split(","):
        # a parameter belongs to the mapping before it
        if parts and "=" in part and ":" not in part:
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    parts = [alone for part in parts for alone in _each_value(part)]
    mappings = [parse_mapping(part, option) for part in parts]
    described = list(map(describe, mappings))
    if twice := _repeated(described):
        raise ValueError(f"{option} {text}: {twice} is given twice; leave one out")
    labels = [" ".join(part.replace(":", " ").replace(",", " ").split()) for part in parts]
    return dict(zip(labels, mappings, strict=True))


def _each_value(part: str) -> list[str]:
    """Write a description with several values of parameters as one for each combination."""
    name, _, rest = part.partition(":")
    if "/" not in rest:
        return [part]
    pairs = [pair.partition("=") for pair in rest.split(",")]
    choices = [[f"{key}={value}" for value in values.split("/")] for key, _, values in pairs]
    return [f"{name}:{','.join(chosen)}" for chosen in itertools.product(*choices)]


def parse_mapping(text: str, option: str) -> Mapping:
    """Parse `NAME` or `NAME:parameter=value,...` to a mapping.

    Args:
        option: name of the option, for errors.

    Raises:
        ValueError: a malformed description, an unknown name or parameter, a value out of range.
    """
    try:
        return read_mapping(text)
    except ValueError as error:
        raise ValueError(f"{option} {text}: {error}") from None


def read_mapping(text: str) -> Mapping:
    """Parse like `parse_mapping`, if the text is the whole argument."""
    name, values = parts_of(text)
    try:
        return Mapping(name, **values)
    except RuntimeError as error:  # 10^12 knots do not fit into memory
        raise ValueError(str(error)) from None


def parts_of(text: str) -> tuple[str, dict[str, Any]]:
    """Split a description into name and parameters; ranges are not checked, but all else is."""
    name, colon, rest = (piece.strip() for piece in text.partition(":"))
    if not name or "=" in name or (colon and not rest):
        raise ValueError("expected NAME:parameter=value, such as entmax:alpha=1.5, or NAME alone")
    pairs = [_pair(part) for part in rest.split(",")] if rest else []
    spec = get_spec(name, sink=SINK.name in dict(pairs))
    known = [p.name for p in (*parameters_of(spec), *spec.options)]
    values = [(name, _number(name, value, known)) for name, value in pairs]
    if twice := _repeated(name for name, _ in values):
        raise ValueError(f"{twice} is given twice")
    return name, dict[str, Any](values)


def _repeated(names: Iterable[str]) -> str | None:
    """Return the first word that occurs more than once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = (piece.strip() for piece in text.partition("="))
    return name, value


def _number(name: str, value: str, known: list[str]) -> float:
    if name not in known:
        takes = ", ".join(known) or "none"
        raise ValueError(f"{name!r} is not a parameter of this mapping, which takes {takes}")
    try:
        number = float(value)
    except ValueError:
        given = f"{name}={value}" if value else name
        several = "; only compare takes several values" if "/" in value else ""
        raise ValueError(f"expected {name}=NUMBER, got {given!r}{several}") from None
    # knots and units are counts
    return int(number) if number.is_integer() else number


def describe(mapping: Mapping) -> str:
    """Describe as `r-softmax r=0.15`, without learned parameters, which differ between layers."""
    texts = [mapping.name]
    for name, value in mapping.parameter_values().items():
        if name in mapping.learned:
            texts.append(f"{name} learned")
        elif value is not None:  # derived by each row
            texts.append(f"{name} per head" if isinstance(value, list) else f"{name}={value:.12g}")
    return " ".join(texts)

"""Check the entries of a saved config, which may come from an untrusted source."""

from __future__ import annotations

import reprlib
from collections import abc
from collections.abc import Callable
from typing import Any, TypeAlias

from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import HEAD, MULTILABEL, VERSION
from sparse_attn.mappings.registry import get_spec, module_of

AS_WRITTEN = "restore config.json as save_pretrained wrote it"
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

# expected value in words, and its check
Kind: TypeAlias = tuple[str, Callable[[Any], bool]]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _or_null(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _are_values(value: Any) -> bool:
    checks = (_or_null(_is_number), _list_of(_is_number))
    return isinstance(value, dict) and all(any(c(v) for c in checks) for v in value.values())


MAPPING: dict[str, Kind] = {
    "mapping": ("a name", _is_name),
    "params": ("a table of numbers, or lists of them, by name", _are_values),
    "learn": ("a list of names", _list_of(_is_name)),
}
LAYERS: dict[str, Kind] = {
    **MAPPING,
    "per": (
        "'layer', 'head' or 'query'",
        lambda value: value in ("layer", "head", "query"),
    ),
    "modules": ("a list of positions", _list_of(_is_count)),
}
LM_HEAD: dict[str, Kind] = {
    **MAPPING,
    "components": ("a whole number or null", _or_null(_is_count)),
    "prior": ("a name or null", _or_null(_is_name)),
}
CLASSIFIER: dict[str, Kind] = {
    **MAPPING,
    "sparsity": ("a name", _is_name),
    "loss": ("a name or null", _or_null(_is_name)),
    "threshold": ("a number or null", _or_null(_is_number)),
}
VERSIONED: dict[str, Kind] = {"version": ("a whole number", _is_count)}
CONTENTS: dict[str, dict[str, Kind]] = {
    NAME: {"mappings": ("a list of tables", _list_of(lambda part: isinstance(part, dict)))},
    HEAD: LM_HEAD,
    MULTILABEL: {
        "problem_type": (f"one of {', '.join(PROBLEM_TYPES)} or null",
                         lambda value: value is None or value in PROBLEM_TYPES),
        "head": ("a table", lambda value: isinstance(value, dict)),
    },
}  # fmt: skip
MODULE: dict[str, Kind] = {"module": ("a name", _is_name)}  # of a user's mapping
OPTIONAL: dict[str, dict[str, Kind]] = {
    NAME: {"output_attentions": ("true or false", lambda value: isinstance(value, bool))},
    HEAD: MODULE,
    MULTILABEL: {},
}


def is_learned(mapping: str, learn: Any, per: str) -> bool:
    """Whether a mapping with these arguments of `patch_model` has learned parameters."""
    return bool(learn) or per == "query" or get_spec(mapping).weights is not None


def with_module(table: dict[str, Any]) -> dict[str, Any]:
    """Add the module that registers the mapping of a table, if it is a user's."""
    module = module_of(table["mapping"])
    return table if module is None else {**table, "module": module}


def check_entry(key: str, saved: Any) -> None:
    """Raise for a config entry that this version does not write.

    Raises:
        ValueError: it is malformed.
        RuntimeError: another version of this library wrote it.
    """
    if not isinstance(saved, abc.Mapping) or "version" not in saved:
        raise ValueError(
            f"config.{key}: expected a table with version, got {reprlib.repr(saved)}; {AS_WRITTEN}"
        )
    _check_values(key, saved, VERSIONED)
    if saved["version"] != VERSION:
        raise RuntimeError(
            f"config.{key}: expected version {VERSION}, got {saved['version']}; load it with the "
            "version of sparse-attn that wrote it"
        )
    _check_table(key, saved, {**VERSIONED, **CONTENTS[key]}, OPTIONAL[key])
    if key == NAME:
        for part in saved["mappings"]:
            _check_table(f"{key}.mappings", part, LAYERS, MODULE)
        positions = sorted(position for part in saved["mappings"] for position in part["modules"])
        if positions != list(range(len(positions))):
            raise ValueError(
                f"config.{key}.mappings: expected the position of each attention module once, from "
                f"0 on, got {reprlib.repr(positions)}; {AS_WRITTEN}"
            )
    if key == MULTILABEL:
        _check_table(f"{key}.head", saved["head"], CLASSIFIER, MODULE)


def _check_table(
    where: str,
    table: abc.Mapping[str, Any],
    kinds: dict[str, Kind],
    optional: dict[str, Kind] | None = None,
) -> None:
    known = {**kinds, **(optional or {})}
    if not kinds.keys() <= table.keys() <= known.keys():
        raise ValueError(
            f"config.{where}: expected a table with {', '.join(kinds)}, got "
            f"{reprlib.repr(list(table))}; {AS_WRITTEN}"
        )
    _check_values(where, table, known)
    if "module" in table:
        module = table["module"]
        try:
            get_spec(table["mapping"])
        except ValueError:
            raise ValueError(
                f"config.{where}: mapping={table['mapping']!r} is registered by the module "
                f"{module}; import it before the model is loaded, or add --import {module}"
            ) from None


def _check_values(where: str, table: abc.Mapping[str, Any], kinds: dict[str, Kind]) -> None:
    for name, (expected, is_right) in kinds.items():
        if name in table and not is_right(table[name]):
            raise ValueError(
                f"config.{where}.{name}: expected {expected}, got {reprlib.repr(table[name])}; "
                f"{AS_WRITTEN}"
            )

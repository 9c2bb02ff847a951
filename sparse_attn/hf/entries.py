"""Read the entries of a saved config, which may come from an untrusted source."""

from __future__ import annotations

import reprlib
from typing import Any

from sparse_attn.hf.config import VERSION
from sparse_attn.mappings.registry import get_spec, module_of

AS_WRITTEN = "restore config.json as save_pretrained wrote it"


def is_learned(mapping: str, learn: Any, per: str) -> bool:
    """Whether a mapping with these arguments of `patch_model` has learned parameters."""
    return bool(learn) or per == "query" or get_spec(mapping).weights is not None


def with_module(table: dict[str, Any]) -> dict[str, Any]:
    """Add the module that registers the mapping to a table, if it is a user's."""
    if (module := module_of(table["mapping"])) is not None:
        table["module"] = module
    return table


def check_entry(key: str, saved: Any) -> None:
    """Raise for an entry of another version, or with a mapping that is not registered.

    Raises:
        ValueError: it is no entry, or the module that registers the mapping is not imported.
        RuntimeError: another version of this library wrote it.
    """
    if not isinstance(saved, dict) or "version" not in saved:
        raise ValueError(
            f"config.{key}: expected a table with version, got {reprlib.repr(saved)}; {AS_WRITTEN}"
        )
    if saved["version"] not in (1, VERSION):
        raise RuntimeError(
            f"config.{key}: expected version {VERSION}, got {reprlib.repr(saved['version'])}; load "
            "it with the version of sparse-attn that wrote it"
        )
    inside = saved.get("mappings", [])
    tables = [saved, saved.get("head"), *(inside.values() if isinstance(inside, dict) else inside)]
    for table in tables:
        if isinstance(table, dict) and "module" in table:
            _check_registered(key, table)


def _check_registered(key: str, table: dict[str, Any]) -> None:
    try:
        get_spec(table["mapping"])
    except ValueError:
        raise ValueError(
            f"config.{key}: mapping={table['mapping']!r} is registered by the module "
            f"{table['module']}; import it before the model is loaded, or add --import "
            f"{table['module']}"
        ) from None


def tables_for(saved: dict[str, Any], names: list[str]) -> dict[str, dict[str, Any]] | None:
    """Return the saved table of each of a model's attention modules, by name; None if they differ.

    The model is the one that was saved, a part of it, or one around it: the names agree after a
    common prefix.
    """
    tables = saved["mappings"]
    if isinstance(tables, list):
        return _by_position(tables, names)
    if not names or not tables:
        return None
    inside = {path.removesuffix(names[0]) for path in tables if f".{path}".endswith(f".{names[0]}")}
    parts = {p: [path for path in tables if path.startswith(p)] for p in sorted(inside)}
    fits = {p: own for p, own in parts.items() if {p + name for name in names} <= {*own}}
    # T5's decoder has the names of its encoder, and others
    exact = [p for p, own in fits.items() if len(own) == len(names)] or [*fits]
    found = [{name: tables[p + name] for name in names} for p in exact]
    first = next(iter(tables))
    for prefix in {name.removesuffix(first) for name in names if f".{name}".endswith(f".{first}")}:
        if prefix and {*names} == {prefix + path for path in tables}:
            found.append({prefix + path: table for path, table in tables.items()})
    return found[0] if found and all(one == found[0] for one in found) else None


def _by_position(
    tables: list[dict[str, Any]], names: list[str]
) -> dict[str, dict[str, Any]] | None:
    """Read version 1, which counts the attention modules."""
    positions = {position: table for table in tables for position in table["modules"]}
    if len(positions) != len(names):
        return None
    kept = [{k: v for k, v in positions[i].items() if k != "modules"} for i in range(len(names))]
    return dict(zip(names, kept, strict=True))

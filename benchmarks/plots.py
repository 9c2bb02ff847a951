"""Plots of records on logarithmic axes."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes


def curves(
    cases: list[dict[str, Any]], x: str, key: str, which: str
) -> dict[str, list[tuple[float, float]]]:
    """Return points of one pass by contestant: `x` of the cases, and `key` or its median."""
    found: dict[str, list[tuple[float, float]]] = {}
    for case in cases:
        for row in case["rows"]:
            value = row.get(key)
            value = value["median"] if isinstance(value, dict) else value
            if row["pass"] == which and value:
                found.setdefault(row["name"], []).append((case[x], value))
    return found


def draw(axis: Axes, points: list[tuple[float, float]], look: dict[str, Any], name: str) -> None:
    axis.plot(*zip(*points, strict=True), **look, label=name)


def logarithmic(axis: Axes, **settings: Any) -> None:
    axis.set(xscale="log", yscale="log", **settings)
    axis.grid(alpha=0.3)

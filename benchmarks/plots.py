"""Curves on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes


def curve(
    axis: Axes, points: Sequence[tuple[float, float]], style: str, color: str, label: str
) -> None:
    axis.plot(*zip(*points, strict=True), style, marker=".", color=color, label=label)


def logarithmic(axis: Axes, **settings: Any) -> None:
    axis.set(xscale="log", yscale="log", **settings)
    axis.grid(alpha=0.3)

"""Plots of reports in the style of the library's pictures, and their output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sparse_attn.inspection.plot_style import GREY as GREY
from sparse_attn.inspection.plot_style import Axes, name, single, styles
from sparse_attn.inspection.plot_style import label_ends as label_ends
from sparse_attn.inspection.plot_style import legend_below as legend_below
from sparse_attn.inspection.plot_style import panels as panels
from sparse_attn.system.files import atomic_write

_DPI = 150


def looks(labels: Sequence[str], baseline: str | None) -> dict[str, dict[str, Any]]:
    """Return colour, marker and line style of each label; the baseline looks like softmax."""
    named = ["softmax" if label == baseline else label for label in labels]
    return dict(zip(labels, styles(named), strict=True))


def dots(values: Mapping[str, Sequence[float]], baseline: str | None) -> tuple[Figure, Axes]:
    """Plot a row per label: a point per value, a thick line at the mean, a thin line for the sd."""
    figure, axes = single(height=1.2 + 0.42 * len(values))
    styles = looks(list(values), baseline)
    for place, (label, found) in enumerate(values.items()):
        look = styles[label]
        if not found:
            axes.annotate("no run", (0.02, place), xycoords=("axes fraction", "data"), fontsize=10)
            continue
        # stacked, so that equal values stay visible
        heights = place + np.linspace(-0.16, 0.16, len(found) + 2)[1:-1]
        axes.plot(found, heights, **look | {"linestyle": "none"}, markersize=6, alpha=0.65)
        mean = np.mean(found)
        axes.plot([mean] * 2, [place - 0.32, place + 0.32], color=look["color"], lw=2.5)
        if len(found) > 1:
            sd = np.std(found, ddof=1)
            axes.plot([mean - sd, mean + sd], [place] * 2, color=look["color"], lw=1.2)
    axes.set_yticks(range(len(values)), [name(label) for label in values])
    axes.set_ylim(len(values) - 0.5, -0.5)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write the figure reproducibly, byte for byte."""
    with atomic_write(path) as draft:
        # matplotlib's version would change the bytes
        figure.savefig(draft, format=path.suffix[1:], dpi=_DPI, metadata={"Software": None})

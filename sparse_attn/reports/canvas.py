"""Plots of reports in the style of the library's pictures, and their output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sparse_attn.inspection.plot_style import GREY as GREY
from sparse_attn.inspection.plot_style import Axes as Axes
from sparse_attn.inspection.plot_style import label_ends as label_ends
from sparse_attn.inspection.plot_style import legend_below as legend_below
from sparse_attn.inspection.plot_style import name as name
from sparse_attn.inspection.plot_style import panels as panels
from sparse_attn.inspection.plot_style import single as single
from sparse_attn.inspection.plot_style import styles
from sparse_attn.system.files import atomic_write

_DPI = 150


def looks(labels: Sequence[str], baseline: str | None) -> dict[str, dict[str, Any]]:
    """Return colour, marker and line style of each label; the baseline looks like softmax."""
    named = ["softmax" if label == baseline else label for label in labels]
    return dict(zip(labels, styles(named), strict=True))


def save(figure: Figure, path: Path) -> None:
    """Write the figure reproducibly, byte for byte."""
    with atomic_write(path) as draft:
        # matplotlib's version would change the bytes
        figure.savefig(draft, format=path.suffix[1:], dpi=_DPI, metadata={"Software": None})

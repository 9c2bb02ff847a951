"""Plots of reports: the looks of the library's pictures, and the way into files and pages."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sparse_attn.files import whole
from sparse_attn.inspection.looks import (
    GREY,
    Axes,
    legend_below,
    name,
    panels,
    single,
    styles,
)

__all__ = [
    "GREY",
    "Axes",
    "encode",
    "legend_below",
    "looks",
    "name",
    "panels",
    "save",
    "single",
]

_DPI = 150


def looks(labels: Sequence[str], baseline: str | None) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each label; the baseline has those of softmax."""
    named = ["softmax" if label == baseline else label for label in labels]
    return dict(zip(labels, styles(named), strict=True))


def save(figure: Figure, path: Path) -> None:
    """Write the figure; the same one gives the same bytes."""
    with whole(path) as draft:
        # the version of matplotlib would make bytes differ
        figure.savefig(draft, format=path.suffix[1:], dpi=_DPI, metadata={"Software": None})


def encode(figure: Figure) -> str:
    """The figure as a data URI, so that the page needs no other file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")

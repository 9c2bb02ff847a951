"""How plots look, here and in the reports: sizes, colours, labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparse_attn.mappings import get_spec

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("pictures need matplotlib: pip install 'sparse-attn[plots]'") from error

WIDTH = 6.4  # inches; 390 px of screen still show its 11 pt at a readable size
_NAME_LENGTH = 22
GREY = "#767676"
# a cell without a number
HATCHED: dict[str, Any] = {
    "facecolor": "#EDEDED",
    "edgecolor": "#BDBDBD",
    "hatch": "//////",
    "linewidth": 0,
}
# Okabe & Ito 2008, which colour-blind people tell apart: black is softmax, and yellow is left out,
# which a white page swallows
BASE = {"color": "#000000", "marker": "o", "linestyle": "-"}
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", ":", "-.")


def style(place: int) -> dict[str, Any]:
    """Colour, marker and line of the other mapping in this place, which tell it from the rest."""
    turn = place // len(_COLOURS)
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "marker": _MARKERS[(place + turn) % len(_MARKERS)],
        "linestyle": _LINES[turn % len(_LINES)],
    }


def style_of(mapping: str, place: int) -> dict[str, Any]:
    """As `style`, of a registered mapping: softmax is black, a colour of its record goes first."""
    if mapping == "softmax":
        return BASE
    color = get_spec(mapping).color
    return {**style(place), **({"color": color} if color else {})}


def name(label: str) -> str:
    """A label as it is drawn: not too long, and no formula."""
    short = label if len(label) <= _NAME_LENGTH else label[: _NAME_LENGTH - 1] + "…"
    return short.replace("$", r"\$")


def single(height: float = 3.8) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    tidy(axes)
    return figure, axes


def panels(titles: Sequence[str], height: float) -> tuple[Figure, list[Axes]]:
    """A figure with two panels a row, each `height` high and with its title."""
    columns = min(2, len(titles))
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
    made = [figure.add_subplot(rows, columns, place + 1) for place in range(len(titles))]
    for axes, title in zip(made, titles, strict=True):
        axes.set_title(title, fontsize=11)
        tidy(axes)
    return figure, made


def tidy(axes: Axes) -> None:
    """A light grid, and no frame where no axis is."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10)


def legend_below(figure: Figure, axes: Axes) -> None:
    """The legend under the panel, where it hides no line."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9.5, frameon=False)

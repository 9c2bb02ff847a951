"""Style of plots, here and in the reports: sizes, colours, labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparse_attn.mappings import get_spec, mapping_names

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
except ModuleNotFoundError as error:
    told = "pictures need matplotlib: pip install 'sparse-attn[plots]'"
    raise ModuleNotFoundError(told, name="matplotlib") from error

_FONTS = {"svg.fonttype": "none", "pdf.fonttype": 42, "ps.fonttype": 42}
WIDTH = 6.4  # inches; its 11 pt stay readable on a screen of 390 px
_NAME_LENGTH = 24
GREY = "#767676"
# for a cell without a number
HATCHED: dict[str, Any] = {
    "facecolor": "#EDEDED",
    "edgecolor": "#BDBDBD",
    "hatch": "//////",
    "linewidth": 0,
}
# one colour per mapping in all figures; the first seven are Okabe & Ito 2008, distinguishable by
# colour-blind people, without yellow, which is invisible on white
PALETTE = {
    "softmax": "#000000",
    "r-softmax": "#D55E00",
    "sparsemax": "#0072B2",
    "entmax": "#009E73",
    "t-softmax": "#CC79A7",
    "sparsehourglass": "#E69F00",
    "sigsoftmax": "#56B4E9",
    "random-drop-softmax": GREY,
    "temperature-softmax": "#8C564B",
    "top-k-softmax": "#BCA136",
    "taylor-softmax": "#AA4499",
    "spherical-softmax": "#808000",
    "softmax-abs": "#882255",
    "normalized-relu": "#332288",
    "normalized-sigmoid": "#44AA99",
    "weighted-softmax": "#6A7FDB",
    "sparsegen": "#117733",
    "sparsecone": "#B8860B",
    "top-p-softmax": "#12B512",
    "threshold-softmax": "#2F3D16",
    "softpick": "#EE1177",
    "clipped-softmax": "#FF8877",
    "sigmoid": "#1A1AFF",
    "relu": "#E733E7",
    "plif": "#CC3311",
    "monotone": "#5F3DC4",
    "max-gap": "#00B7A8",
    "adaptive-temperature": "#A65628",
}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", ":", "-.")


def styles(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return colour, marker and line of each label of a figure.

    A label that names a mapping, such as `entmax-1.5` or `taylor`, has the mapping's colour, from
    its record or the palette. Other labels get free colours. Labels of one mapping differ in marker
    and line.
    """
    keys = [mapping_in(label) or label for label in labels]
    colours = {key: _colour(key) for key in keys}
    # colours of the rarest mappings first
    free = (c for c in reversed(PALETTE.values()) if c not in colours.values())
    colours = {key: colour or next(free, GREY) for key, colour in colours.items()}
    order = [*PALETTE.values(), *colours.values()]
    found = []
    for place, key in enumerate(keys):
        turn = keys[:place].count(key)
        marker = _MARKERS[(order.index(colours[key]) + turn) % len(_MARKERS)]
        line = _LINES[turn % len(_LINES)]
        found.append({"color": colours[key], "marker": marker, "linestyle": line})
    return found


def mapping_in(label: str) -> str | None:
    """Find the longest mapping name in a label, or a name that the label shortens."""
    named = [n for n in mapping_names() if n in label or n.startswith(f"{label}-")]
    return max(named, key=lambda n: (n in label, len(n)), default=None)


def _colour(key: str) -> str | None:
    registered = get_spec(key).color if key in mapping_names() else None
    return registered or PALETTE.get(key)


def name(label: str) -> str:
    """Prepare a label for drawing: shortened, and no formula."""
    short = label if len(label) <= _NAME_LENGTH else label[: _NAME_LENGTH - 1] + "…"
    return short.replace("$", r"\$")


class PaperFigure(Figure):
    """A figure whose files have text as text in SVG, and Type 42 fonts in PDF and PostScript.

    The defaults of matplotlib are shapes and Type 3 fonts, which many publishers reject.
    """

    def savefig(self, fname: Any, **options: Any) -> None:
        # a PdfPages embeds the fonts when it is closed, by the settings of that time
        is_file = isinstance(fname, str | os.PathLike) or hasattr(fname, "write")
        with rc_context(_FONTS if is_file else {}):
            super().savefig(fname, **options)


def axes_of(
    ax: Axes | None, figsize: tuple[float, float] | None, default: tuple[float, float]
) -> tuple[Figure, Axes]:
    """Return the figure and the axes to draw into: those of `ax`, or of a new figure.

    Raises:
        ValueError: both ax and figsize are given.
        TypeError: ax is no axes.
    """
    if ax is None:
        new = PaperFigure(figsize=figsize or default, layout="constrained")
        return new, new.add_subplot()
    if figsize is not None:
        raise ValueError(f"figsize={figsize!r}: expected None, because ax is in a figure with one")
    if not isinstance(ax, Axes):
        raise TypeError(f"ax: expected one Axes of matplotlib, got {type(ax).__name__}")
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure, ax


def write_title(figure: Figure, ax: Axes | None, text: str, **look: Any) -> None:
    """Write a title above the figure, or only above `ax` in a figure of the caller."""
    (figure.suptitle if ax is None else ax.set_title)(text, fontsize=12, **look)


def single(height: float = 3.8) -> tuple[Figure, Axes]:
    """Create a figure with one panel."""
    figure, axes = axes_of(None, None, (WIDTH, height))
    tidy(axes)
    return figure, axes


def panels(
    titles: Sequence[str], height: float | Sequence[float], columns: int = 2
) -> tuple[Figure, list[Axes]]:
    """Create a figure of titled panels, two per row; `height` is one for all or one per row."""
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    heights = list(height) if isinstance(height, Sequence) else [height] * rows
    figure = PaperFigure(figsize=(WIDTH, sum(heights) + 0.4), layout="constrained")
    grid = figure.add_gridspec(rows, columns, height_ratios=heights)
    made = [figure.add_subplot(grid[place]) for place in range(len(titles))]
    for axes, title in zip(made, titles, strict=True):
        axes.set_title(title, fontsize=11)
        tidy(axes)
    return figure, made


def tidy(axes: Axes) -> None:
    """Draw a light grid, and no frame without an axis."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10)


def label_ends(axes: Axes, lines: Mapping[str, Line2D]) -> None:
    """Write the name of each line right of its end, moved where names would overlap."""
    axes.autoscale_view()
    xy = axes.transData.transform([np.asarray(line.get_xydata())[-1] for line in lines.values()])
    ends = np.clip(axes.transAxes.inverted().transform(xy), 0, 1)
    order = np.argsort(ends[:, 1], kind="stable")
    points = 72 * axes.bbox.height / axes.figure.dpi
    gap = min(13 / points, 1 / len(ends))
    places = ends[order, 1]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    places[-1] = min(places[-1], 1)
    for i in range(len(places) - 1, 0, -1):
        places[i - 1] = min(places[i - 1], places[i] - gap)
    names = list(lines)
    for place, i in zip(places, order, strict=True):
        color = lines[names[i]].get_color()
        axes.annotate(
            name(names[i]),
            tuple(ends[i]),
            (1.05, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            color=color,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.6, "relpos": (0, 0.5)},
        )


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend under the panel, where it hides no line."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 3 if max(map(len, labels)) < 24 else 2
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles, labels, **place, fontsize=9.5, frameon=False)

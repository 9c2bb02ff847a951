"""Forest plots of entries; a panel has those of one study, metric and task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import copysign
from statistics import median
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparse_attn.reports import canvas
from sparse_attn.reports.forest import mark
from website.differences.entries import Entry

# tasks of a study share a panel if there are more than this
FEW = 4
WIDTH = 36  # characters of a label
FAR = 4  # limit of the axis, relative to the median reach of a panel's rows


@dataclass(frozen=True)
class Panel:
    """Entries with one axis.

    Attributes:
        task: the task, or the number of tasks.
    """

    task: str
    entries: list[Entry]

    @property
    def first(self) -> Entry:
        """The first entry; all have the same study, metric and unit."""
        return self.entries[0]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(entry.task for entry in self.entries))

    @property
    def rows(self) -> list[list[Entry]]:
        """The entries of each mapping."""
        found: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries:
            found.setdefault((entry.mapping, entry.source), []).append(entry)
        return list(found.values())


def panels_of(entries: Sequence[Entry]) -> list[Panel]:
    """Return the panels of all studies, in the order of the entries."""
    found: dict[tuple[str, str], dict[str, list[Entry]]] = {}
    for entry in entries:
        found.setdefault((entry.study, entry.metric), {}).setdefault(entry.task, []).append(entry)
    made = []
    for by_task in found.values():
        if len(by_task) > FEW:
            made.append(Panel(f"{len(by_task)} tasks", [*chain(*by_task.values())]))
        else:
            made += [Panel(task, some) for task, some in by_task.items()]
    return made


def draw(panels: Sequence[Panel]) -> Figure:
    """Draw a panel per study, task and metric; better is to the right in all of them."""
    heights = [0.9 + sum(max(0.2, 0.045 * len(row)) for row in p.rows) for p in panels]
    titles = [f"{panel.first.study}: {panel.task}" for panel in panels]
    looks = canvas.looks(
        list(dict.fromkeys(e.mapping for panel in panels for e in panel.entries)), None
    )
    figure, drawn = canvas.panels(titles, heights, columns=1)
    for axes, panel in zip(drawn, panels, strict=True):
        axes.title.set_fontsize(9)
        axes.axvline(0, color="black", lw=1, ls="--")
        for row, some in enumerate(panel.rows):
            alone = len(some) == 1
            places = [row] if alone else np.linspace(row - 0.33, row + 0.33, len(some))
            for place, entry in zip(places, some, strict=True):
                colour = looks[entry.mapping]["color"] if entry.baseline_learned else "0.7"
                filled = entry.side not in (0, None)
                size = 6.0 if alone else 2.6
                assert entry.difference is not None
                mark(axes, place, entry.difference, entry.interval, colour, filled, size)
        axes.set_yticks(
            range(len(panel.rows)), [_label(row, panel) for row in panel.rows], fontsize=8
        )
        axes.set_ylim(len(panel.rows) - 0.5, -0.5)
        axes.tick_params(axis="x", labelsize=8)
        axes.set_xlabel(
            f"{panel.first.metric} against {panel.first.baseline}, {panel.first.unit}: better →",
            fontsize=8,
        )
        _limit_axis(axes, panel)
        if not panel.first.higher_is_better:
            axes.invert_xaxis()
    return figure


def _limit_axis(axes: Axes, panel: Panel) -> None:
    """Scale the axis to the usual rows, and write values beyond it as numbers at the edge."""
    if any(len(row) > 1 for row in panel.rows):
        return
    values = [row[0].difference or 0.0 for row in panel.rows]
    ends = [row[0].interval or () for row in panel.rows]
    reach = [max(map(abs, (value, *some))) for value, some in zip(values, ends, strict=True)]
    limit = FAR * median(reach)
    if not 0 < limit < max(reach):
        return
    axes.set_xlim(-limit, limit)
    for place, value in enumerate(values):
        if abs(value) > limit:
            at_left = (value < 0) == panel.first.higher_is_better
            axes.annotate(
                f"{value:+.3g}",
                (copysign(limit, value), place),
                ha="left" if at_left else "right",
                va="center",
                fontsize=7,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )


def _label(entries: list[Entry], panel: Panel) -> str:
    """Return the mapping, with its record if needed to distinguish it, and its zeros if known."""
    first = entries[0]
    alike = {entry.record for entry in panel.entries if entry.mapping == first.mapping}
    name = (first.label if len(alike) > 1 else first.mapping).replace("$", r"\$")
    if first.zeros is not None and len(entries) == 1:
        name += f" ({100 * first.zeros:.0f}\N{NO-BREAK SPACE}%)"
    return fill(name, WIDTH)

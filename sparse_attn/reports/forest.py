"""Forest plots of differences from a baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from matplotlib.figure import Figure

from sparse_attn.reports import canvas
from sparse_attn.reports.canvas import Axes
from sparse_attn.reports.seed_statistics import Difference


def forest(
    differences: Mapping[str, Mapping[str, Difference]],
    label: str,
    settled: Collection[tuple[str, str]] | None = None,
) -> Figure | None:
    """Plot a panel per task, a row per mapping: a mark at the difference, a line for its interval.

    Args:
        differences: differences of each task, by mapping.
        label: axis label.
        settled: (task, mapping) pairs with filled marks; None fills marks whose interval excludes
            0.

    Returns:
        The figure, or None if no difference has an interval.
    """
    shown = {task: found for task, found in differences.items() if found}
    if not any(found.interval for task in shown.values() for found in task.values()):
        return None
    names = list(dict.fromkeys(name for found in shown.values() for name in found))
    looks = canvas.looks(names, None)
    figure, panels = canvas.panels([canvas.name(task) for task in shown], 0.9 + 0.3 * len(names))
    for place, (axes, (task, found)) in enumerate(zip(panels, shown.items(), strict=True)):
        axes.axvline(0, color="black", lw=1, ls="--")
        for name, difference in found.items():
            row, colour = names.index(name), looks[name]["color"]
            filled = difference.side != 0 if settled is None else (task, name) in settled
            mark(axes, row, difference.value, difference.interval, colour, filled)
        first = place % 2 == 0  # the panel to the right shares the rows
        axes.set_yticks(range(len(names)), [canvas.name(n) for n in names] if first else [])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel(label)
    reach = [axes.get_xlim() for axes in panels]
    for axes in panels:
        axes.set_xlim(min(low for low, _ in reach), max(high for _, high in reach))
    return figure


def mark(
    axes: Axes,
    row: float,
    value: float,
    interval: tuple[float, float] | None,
    colour: str,
    filled: bool,
    size: float = 7,
) -> None:
    """Draw a disc (a ring if not filled) on the line of its interval; a cross without one."""
    if interval is None:
        axes.plot([value], [row], "x", color=colour, ms=size)
        return
    axes.plot(interval, [row, row], color=colour, lw=2 * min(1, size / 6))
    fill = colour if filled else "white"
    axes.plot([value], [row], "o", color=colour, markerfacecolor=fill, ms=size)

"""Figures like 2 and 3 of the paper: a measure by dimension, one panel a vocabulary."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bottleneck.records import Results
from pipeline.report import canvas

FLOOR = {"color": canvas.GREY, "linestyle": "--", "linewidth": 1.6}


def plot(results: Results, alpha: float, measure: str, label: str) -> Figure:
    """Lines: means over seeds; bands: one standard deviation to each side.

    With the measure `log_error` the Eckart-Young floor of linear softmax is drawn in.
    """
    vocabularies = results.values("vocabulary")
    figure, panels = canvas.panels([f"M = {vocabulary:,}" for vocabulary in vocabularies], 3.2)
    for axes, vocabulary in zip(panels, vocabularies, strict=True):
        grid = {"alpha": alpha, "vocabulary": vocabulary}
        for place, head in enumerate(results.heads):
            look = canvas.BASE if head == "softmax" else canvas.style(place - 1)
            look = {**look, "label": head, "markersize": 4.5}
            _line(axes, results, measure, {**grid, "head": head}, look)
        if measure == "log_error":
            _line(axes, results, "floor", grid, {**FLOOR, "label": "floor of softmax"})
        axes.set_xscale("log")
        dimensions = results.values("dimension")
        axes.set_xticks(dimensions, [str(dimension) for dimension in dimensions])
        axes.minorticks_off()
        axes.set_xlabel("dimension D")
        axes.set_ylabel(label)
    canvas.legend_below(figure, panels[0])
    return figure


def _line(
    axes: Axes,
    results: Results,
    measure: str,
    cell: dict[str, Any],
    look: dict[str, Any],
) -> None:
    """One line with its band, over the dimensions at which runs have finished."""
    spreads = {
        dimension: spread
        for dimension in results.values("dimension")
        if (spread := results.spread(measure, dimension=dimension, **cell))
    }
    axes.plot(list(spreads), [spread.mean for spread in spreads.values()], **look)
    low = [spread.mean - (spread.sd or 0) for spread in spreads.values()]
    high = [spread.mean + (spread.sd or 0) for spread in spreads.values()]
    axes.fill_between(list(spreads), low, high, color=look["color"], alpha=0.18, linewidth=0)

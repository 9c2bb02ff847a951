"""The plots of one task; each function returns a figure, or None without data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sparse_attn.engine.sweep.records import Record
from sparse_attn.reports import canvas
from sparse_attn.reports.page import Plot

from ..sweep import BASELINE
from .columns import sparsity
from .runs import Sweep


def make_plots(sweep: Sweep, task: str) -> list[Plot]:
    """Return all plots that have data."""
    made = ((title, caption, draw(sweep, task)) for title, caption, draw in _PLOTS)
    return [
        Plot(f"{task}-{title.lower().replace(' ', '-')}", f"{task}: {title}", caption, figure)
        for title, caption, figure in made
        if figure
    ]


def parameters(sweep: Sweep, task: str) -> Figure | None:
    curves: dict[str, dict[str, dict[float, list[float]]]] = defaultdict(dict)
    for mapping in sweep.mappings:
        for parameter, points in _by_parameter(sweep.searched((task, mapping))).items():
            curves[parameter][mapping] = points
    if not curves:
        return None
    base = [100 * record.score for record in sweep.searched((task, BASELINE))]
    figure, panels = canvas.panels([canvas.name(parameter) for parameter in curves], 2.9)
    for axes, by_mapping in zip(panels, curves.values(), strict=True):
        for mapping, points in by_mapping.items():
            look = _look(sweep, mapping)
            values = sorted(points)
            means = [np.mean(points[value]) for value in values]
            axes.plot(values, means, **look, markersize=5, label=canvas.name(mapping))
            for value in values:
                axes.plot(
                    [value] * len(points[value]),
                    points[value],
                    **look | {"linestyle": "none", "alpha": 0.4, "markersize": 4},
                )
        if base:
            axes.axhline(float(np.mean(base)), color="black", lw=1, ls="--")
        axes.set_ylabel(_metric_label(sweep, task))
        axes.legend(fontsize=9)
    _same_limits(panels)
    return figure


def zeros(sweep: Sweep, task: str) -> Figure | None:
    shares: dict[str, np.ndarray] = {}
    for mapping in sweep.mappings:
        heads = [sparsity(run).get("per_head") for run in sweep.finished((task, mapping))]
        grids = [np.array(grid) for grid in heads if grid]
        if grids and np.mean(grids) >= 0.005:  # smaller shares come from rounding
            shares[mapping] = np.mean(grids, axis=0)
    if not shares:
        return None
    titles = [f"{canvas.name(m)}: {100 * grid.mean():.0f} %" for m, grid in shares.items()]
    figure, panels = canvas.panels(titles, 2.3)
    for axes, grid in zip(panels, shares.values(), strict=True):
        image = axes.imshow(100 * grid, cmap="cividis", vmin=0, vmax=100, aspect="auto")
        axes.grid(visible=False)
        axes.set(xlabel="head", ylabel="layer")
        for axis, size in ((axes.xaxis, grid.shape[1]), (axes.yaxis, grid.shape[0])):
            axis.set_ticks(range(0, size, 1 if size < 7 else 2))
    figure.colorbar(image, ax=panels, label="exact zeros in %", shrink=0.8)
    return figure


_PLOTS: tuple[tuple[str, str, Callable[[Sweep, str], Figure | None]], ...] = (
    (
        "Score against a parameter",
        "One point for each search run (trial or point of the grid), a line through their means; "
        "dashed: the mean of softmax's search runs. Learning rate and seed differ between points "
        "too, so steps of the line are not the parameter's alone.",
        parameters,
    ),
    (
        "Zeros by layer and head",
        "Share of attention weights that are exactly zero on the scored split, mean over seeds, "
        "for every mapping that has some; its mean over heads stands above.",
        zeros,
    ),
)


def _look(sweep: Sweep, mapping: str) -> dict[str, Any]:
    return canvas.looks(sweep.mappings, BASELINE)[mapping]


def _by_parameter(runs: list[Record]) -> dict[str, dict[float, list[float]]]:
    """Return the scores by parameter value, for each parameter with several values."""
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in runs:
        for parameter, value in record.config["mapping"]["params"].items():
            if isinstance(value, int | float):
                found[parameter][value].append(100 * record.score)
    return {parameter: points for parameter, points in found.items() if len(points) > 1}


def _same_limits(panels: list[canvas.Axes]) -> None:
    bottoms, tops = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels:
        axes.set_ylim(min(bottoms), max(tops))


def _metric_label(sweep: Sweep, task: str) -> str:
    return f"{str(sweep.metric(task)).replace('_', ' ')} x 100"

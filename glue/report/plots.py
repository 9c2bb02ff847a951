"""The plots of one task; each function returns a figure, or None without data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparse_attn.engine.sweep.records import Record
from sparse_attn.reports import canvas
from sparse_attn.reports.bootstrap import expected_best
from sparse_attn.reports.page import Plot

from ..sweep import BASELINE
from .runs import Sweep, first_split, results_of
from .table import majority, sparsity


def make_plots(sweep: Sweep, task: str) -> list[Plot]:
    """Return all plots that have data."""
    made = ((title, caption, draw(sweep, task)) for title, caption, draw in _PLOTS)
    return [
        Plot(f"{task}-{title.lower().replace(' ', '-')}", f"{task}: {title}", caption, figure)
        for title, caption, figure in made
        if figure
    ]


def scores(sweep: Sweep, task: str) -> Figure | None:
    found = {
        mapping: [100 * r.score for r in sweep.scored(task, mapping).values()]
        for mapping in sweep.mappings
    }
    if not any(found.values()):
        return None
    figure, axes = canvas.dots(found, BASELINE)
    if found[BASELINE]:
        axes.axvline(float(np.mean(found[BASELINE])), color="black", lw=1, ls="--")
    constant = majority(sweep, task)
    if constant is not None:
        axes.axvline(100 * constant, color=canvas.GREY, lw=1.2, ls=":")
    axes.set_xlabel(_metric_label(sweep, task))
    return figure


def parameters(sweep: Sweep, task: str) -> Figure | None:
    curves: dict[str, dict[str, dict[float, list[float]]]] = defaultdict(dict)
    for mapping in sweep.mappings:
        for parameter, points in _by_parameter(sweep.searched(task, mapping)).items():
            curves[parameter][mapping] = points
    if not curves:
        return None
    base = [100 * record.score for record in sweep.searched(task, BASELINE)]
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


def learning(sweep: Sweep, task: str) -> Figure | None:
    logs = {
        mapping: [results_of(r).get("log", []) for r in sweep.scored(task, mapping).values()]
        for mapping in sweep.mappings
    }
    # a single logged step is no curve
    logs = {mapping: [log for log in found if len(log) > 1] for mapping, found in logs.items()}
    logs = {mapping: found for mapping, found in logs.items() if found}
    if not logs:
        return None
    figure, panels = canvas.panels([canvas.name(mapping) for mapping in logs], 2.1)
    for axes, (mapping, found) in zip(panels, logs.items(), strict=True):
        colour = _look(sweep, mapping)["color"]
        for log in found:
            axes.plot(*_curve(log, "loss"), color=colour, lw=0.8, alpha=0.35)
        if mapping != BASELINE and BASELINE in logs:
            axes.plot(*_mean_curve(logs[BASELINE], "loss"), color=canvas.GREY, lw=1.4, ls="--")
        axes.plot(*_mean_curve(found, "loss"), color=colour, lw=2)
        scheduled = sorted({key for line in found[0] for key in line} - {"step", "loss"})
        for parameter in scheduled:
            second = axes.twinx()
            second.plot(*_mean_curve(found, parameter), color=canvas.GREY, lw=1.6, ls=":")
            second.set_ylabel(canvas.name(parameter), color=canvas.GREY, fontsize=10)
            second.tick_params(labelsize=9, colors=canvas.GREY)
            second.spines[["top", "left"]].set_visible(False)
        axes.set(xlabel="step", ylabel="training loss")
    _same_limits(panels)
    return figure


def epochs(sweep: Sweep, task: str) -> Figure | None:
    figure, axes = canvas.single()
    for mapping in sweep.mappings:
        runs = [r for r in sweep.searched(task, mapping) if results_of(r)["per_epoch"]]
        if not runs:
            continue
        best = max(runs, key=lambda record: record.score)
        points = [
            (entry["epoch"], 100 * value)
            for entry in results_of(best)["per_epoch"]
            if (value := _epoch_score(best, entry)) is not None
        ]
        # a single evaluation is no curve
        if len(points) > 1:
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, **_look(sweep, mapping), label=canvas.name(mapping))
    if not axes.lines:
        return None
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel=_metric_label(sweep, task))
    canvas.legend_below(figure, axes)
    return figure


def zeros(sweep: Sweep, task: str) -> Figure | None:
    shares: dict[str, np.ndarray] = {}
    for mapping in sweep.mappings:
        heads = [sparsity(r).get("per_head") for r in sweep.scored(task, mapping).values()]
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


def budget(sweep: Sweep, task: str) -> Figure | None:
    found = {m: [100 * r.score for r in sweep.searched(task, m)] for m in sweep.mappings}
    # two runs are no curve
    if max(map(len, found.values())) < 3:
        return None
    figure, axes = canvas.single()
    for mapping, values in found.items():
        if values:
            best = expected_best(values)
            look = _look(sweep, mapping)
            axes.plot(range(1, len(best) + 1), best, **look, label=canvas.name(mapping))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="runs that the best is chosen from")
    axes.set_ylabel(f"expected best {_metric_label(sweep, task)}")
    canvas.legend_below(figure, axes)
    return figure


_PLOTS: tuple[tuple[str, str, Callable[[Sweep, str], Figure | None]], ...] = (
    (
        "Scores",
        "Every run that counts is a point; thick line: mean; thin line: one standard deviation to "
        "each side; dashed: the mean of softmax; dotted, for accuracy: one class for all examples.",
        scores,
    ),
    (
        "Score against a parameter",
        "One point for each search run (trial or point of the grid), a line through their means; "
        "dashed: the mean of softmax's search runs. Learning rate and seed differ between points "
        "too, so steps of the line are not the parameter's alone.",
        parameters,
    ),
    (
        "Expected best against budget",
        "Expected score of the best of k search runs (Dodge et al. 2019), drawn from those that "
        "finished. Compare mappings at the same k.",
        budget,
    ),
    (
        "Learning curves",
        "Training loss of the runs that count: light for each seed, bold their mean, grey dashed "
        "the mean of softmax; grey dotted, on the right: the value of the schedule.",
        learning,
    ),
    (
        "Score by epoch",
        "Score after every epoch of each mapping's best search run.",
        epochs,
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


def _curve(log: list[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    points = [(line["step"], line[key]) for line in log if key in line]
    return [step for step, _ in points], [value for _, value in points]


def _mean_curve(logs: list[list[dict[str, float]]], key: str) -> tuple[list[float], list[float]]:
    at: dict[float, list[float]] = defaultdict(list)
    for log in logs:
        for step, value in zip(*_curve(log, key), strict=True):
            at[step].append(value)
    return sorted(at), [float(np.mean(at[step])) for step in sorted(at)]


def _same_limits(panels: list[canvas.Axes]) -> None:
    bottoms, tops = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels:
        axes.set_ylim(min(bottoms), max(tops))


def _epoch_score(record: Record, entry: dict[str, float]) -> float | None:
    metric = results_of(record)["main_metric"]
    return entry.get(metric, entry.get(f"{first_split(record)}/{metric}"))


def _metric_label(sweep: Sweep, task: str) -> str:
    return f"{str(sweep.metric(task)).replace('_', ' ')} x 100"

"""Figures like 2 and 3 of the paper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.multilabel.config import BASELINE
from experiments.multilabel.report.results import Results, f1
from pipeline.report import canvas

# what the synthetic data sets are varied along: key of the config, label of the axis
AXES = {"labels": "mean number of labels", "length": "document length"}
BAND = "#E4E4E4"
Series = dict[int, list[tuple[int, str]]]


def series(results: Results, axis: str) -> Series:
    """By number of classes: (x, data set) along an axis, ascending.

    Along `labels` these are the data sets of the greatest length, along `length` those whose mean
    number of labels is half of the classes.
    """
    found: Series = defaultdict(list)
    synthetic = {name: data["synthetic"] for name, data in results.content["data"].items()}
    configs = {name: config for name, config in synthetic.items() if config is not None}
    longest = max((config["length"] for config in configs.values()), default=0)
    for name, config in configs.items():
        fixed = (
            config["length"] == longest
            if axis == "labels"
            else config["labels"] == config["classes"] // 2
        )
        if fixed:
            found[config["classes"]].append((config[axis], name))
    return {classes: sorted(points) for classes, points in sorted(found.items())}


def plot_axis(results: Results, axis: str) -> Figure | None:
    """Like figure 2: lines are means over seeds, bars one standard deviation to each side.

    The grey band goes from the worst threshold of softmax to its best, as far as the panel does.
    None where no data set is varied along the axis.
    """
    lines = {c: points for c, points in series(results, axis).items() if len(points) > 1}
    if not lines:
        return None
    figure, panels = canvas.panels([f"{classes} classes" for classes in lines], 3.2)
    for axes, points in zip(panels, lines.values(), strict=True):
        for method, look in _looks(results):
            _line(axes, results, points, method, look)
        seen = axes.get_ylim()
        _band(axes, results, points)
        axes.set_ylim(seen)  # the worst threshold can be far below
        if axis == "length":
            axes.set_xscale("log")
        axes.set_xticks([x for x, _ in points], [str(x) for x, _ in points])
        axes.minorticks_off()
        axes.set_xlabel(AXES[axis])
        axes.set_ylabel("micro-F1 in %")
    canvas.legend_below(figure, panels[0])
    return figure


def plot_curves(results: Results) -> Figure | None:
    """Like figure 3: micro-F1 on the validation set by epoch, mean over the seeds that finished.

    Of synthetic data sets those with half of the classes as labels, the longest of them. None
    where no run has two epochs.
    """
    names = [name for name, data in results.content["data"].items() if data["synthetic"] is None]
    names += [points[-1][1] for points in series(results, "length").values()]
    curves = {name: {m: _curve(results, name, m) for m in results.methods} for name in names}
    curves = {name: found for name, found in curves.items() if max(map(len, found.values())) > 1}
    if not curves:
        return None
    figure, panels = canvas.panels([canvas.name(name) for name in curves], 3.2)
    for axes, found in zip(panels, curves.values(), strict=True):
        for method, look in _looks(results):
            means = found[method]
            axes.plot(range(1, len(means) + 1), means, linewidth=1.2, **{**look, "marker": ""})
        axes.set_xlabel("epoch")
        axes.set_ylabel("micro-F1, validation, in %")
    canvas.legend_below(figure, panels[0])
    return figure


def _curve(results: Results, name: str, method: str) -> list[float]:
    """Mean validation micro-F1 in % after each epoch."""
    runs = [record.results for record in results.counting(name, method) if record.results]
    epochs = zip(*(run["history"]["score"] for run in runs), strict=True)
    return [100 * fmean(scores) for scores in epochs]


def _looks(results: Results) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method with its colour, marker and line."""
    others = [method for method in results.methods if method != BASELINE]
    for method in results.methods:
        look = canvas.BASE if method == BASELINE else canvas.style(others.index(method))
        yield method, {**look, "label": canvas.name(method)}


def _line(
    axes: Axes,
    results: Results,
    points: list[tuple[int, str]],
    method: str,
    look: dict[str, Any],
) -> None:
    """One line with its bars, over the data sets on which runs have finished."""
    found = [(x, e) for x, name in points if (e := results.estimate(name, method, f1("micro")))]
    axes.errorbar(
        [x for x, _ in found],
        [estimate.mean for _, estimate in found],
        yerr=[estimate.sd or 0.0 for _, estimate in found],
        markersize=4.5,
        linewidth=1.2,
        elinewidth=0.8,
        capsize=2,
        **look,
    )


def _band(axes: Axes, results: Results, points: list[tuple[int, str]]) -> None:
    """Mean micro-F1 of softmax from its worst threshold to its best."""
    ends = []
    for x, name in points:
        means = [found.mean for found in results.by_threshold(name, BASELINE).values()]
        if means:
            ends.append((x, min(means), max(means)))
    if ends:
        places, low, high = zip(*ends, strict=True)
        axes.fill_between(
            places, low, high, color=BAND, linewidth=0, label="softmax, any threshold"
        )

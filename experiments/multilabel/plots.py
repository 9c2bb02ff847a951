"""Figures like 2 and 3 of the paper."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from matplotlib.figure import Figure

from experiments.multilabel.config import BASELINE
from experiments.multilabel.measures import by_threshold, f1
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import canvas

# axes of the synthetic data sets: config key, axis label
AXES = {"labels": "mean number of labels", "length": "document length"}
BAND = "#E4E4E4"
Points = list[tuple[int, str]]  # x, data set


def series(results: Results, axis: str) -> dict[int, Points]:
    """Return the standardised data sets along an axis, ascending, by number of classes.

    The axis `labels` uses the data sets of the greatest length. The axis `length` uses those with a
    mean number of labels of half the number of classes.
    """
    found: dict[int, Points] = defaultdict(list)
    data = results.sweep.data.items()
    configs = {name: one.synthetic for name, one in data if one.synthetic is not None}
    configs = {name: config for name, config in configs.items() if config.standardize}
    longest = max((config.length for config in configs.values()), default=0)
    for name, config in configs.items():
        half = config.labels == config.classes // 2
        if config.length == longest if axis == "labels" else half:
            found[config.classes].append((getattr(config, axis), name))
    return {classes: sorted(points) for classes, points in sorted(found.items())}


def plot_axis(results: Results, axis: str) -> Figure | None:
    """Plot like figure 2: lines are means over seeds, bars one standard deviation to each side.

    The grey band spans softmax from its worst threshold to its best, clipped to the panel. None if
    no data set varies along the axis.
    """
    lines = {c: points for c, points in series(results, axis).items() if len(points) > 1}
    if not lines:
        return None
    figure, panels = canvas.panels([f"{classes} classes" for classes in lines], 2.8, columns=1)
    for axes, points in zip(panels, lines.values(), strict=True):
        drawn = {}
        for method, look in canvas.looks(results.mappings, BASELINE).items():
            spreads = {x: results.spread((name, method), f1("micro")) for x, name in points}
            found = {x: spread for x, spread in spreads.items() if spread}
            if not found:
                continue
            drawn[method], *_ = axes.errorbar(
                list(found),
                [spread.mean for spread in found.values()],
                yerr=[spread.sd or 0.0 for spread in found.values()],
                **{**look, "markersize": 4.5},
                capsize=2,
                linewidth=1.2,
                elinewidth=0.8,
            )
        seen = axes.get_ylim()
        _band(axes, results, points)
        axes.set_ylim(seen)  # the worst threshold can be far below
        if axis == "length":
            axes.set_xscale("log")
        axes.set_xticks([x for x, _ in points], [str(x) for x, _ in points])
        axes.minorticks_off()
        axes.set(xlabel=AXES[axis], ylabel="micro-F1 in %")
        if drawn:
            canvas.label_ends(axes, drawn)
    return figure


def _band(axes: canvas.Axes, results: Results, points: Points) -> None:
    """Draw a band of mean micro-F1 of softmax from its worst threshold to its best."""
    found = {x: by_threshold(results, (name, BASELINE)).values() for x, name in points}
    means = {x: [one.mean for one in some] for x, some in found.items() if some}
    if means:
        low, high = list(map(min, means.values())), list(map(max, means.values()))
        axes.fill_between(list(means), low, high, color=BAND, linewidth=0)


def plot_curves(results: Results) -> Figure | None:
    """Plot like figure 3: validation micro-F1 by epoch, mean over the seeds that finished.

    Only the longest synthetic data sets with half the classes as labels are shown. None if no run
    has two epochs.
    """
    names = [name for name, data in results.sweep.data.items() if data.synthetic is None]
    names += [points[-1][1] for points in series(results, "length").values()]
    looks = canvas.looks(results.mappings, BASELINE)
    curves = {name: {method: _curve(results, name, method) for method in looks} for name in names}
    curves = {name: found for name, found in curves.items() if max(map(len, found.values())) > 1}
    if not curves:
        return None
    figure, panels = canvas.panels([canvas.name(name) for name in curves], 2.8, columns=1)
    for axes, found in zip(panels, curves.values(), strict=True):
        drawn = {}
        for method, means in found.items():
            if means:
                look = {**looks[method], "marker": "", "linewidth": 1.2}
                (drawn[method],) = axes.plot(range(1, len(means) + 1), means, **look)
        axes.set(xlabel="epoch", ylabel="micro-F1, validation, in %")
        if drawn:
            canvas.label_ends(axes, drawn)
    return figure


def _curve(results: Results, name: str, method: str) -> list[float]:
    """Return mean validation micro-F1 in % after each epoch; a stopped run keeps its best."""
    runs = [run["history"]["score"] for run in results.finished((name, method))]
    longest = max(map(len, runs), default=0)
    filled = [scores + [max(scores)] * (longest - len(scores)) for scores in runs]
    return [100 * fmean(scores) for scores in zip(*filled, strict=True)]

"""The plots of one experiment; each function returns a figure, or None without data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator, NullFormatter

import experiments.language_modeling.mappings  # noqa: F401  # a label that names one has its colour
from experiments.language_modeling.config import BASELINE
from experiments.language_modeling.report.runs import cells_of
from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import canvas


def learning(results: Results, task: str) -> Figure | None:
    """Plot validation perplexity by epoch: mean over seeds, shaded from lowest to highest."""
    curves = {cell[1]: _curves(results, cell) for cell in cells_of(results, task)}
    # a single evaluation is no curve
    if max((curve.shape[-1] for curve in curves.values()), default=0) < 2:
        return None
    looks = canvas.looks(list(curves), BASELINE)
    figure, axes = canvas.single(height=5.0)
    for label, curve in curves.items():
        if not curve.size:
            continue
        epochs = np.arange(1, curve.shape[1] + 1)
        marks = {**looks[label], "markersize": 4, "markevery": -(-len(epochs) // 10)}
        axes.plot(epochs, curve.mean(0), **marks, label=_escaped(label))
        if len(curve) > 1:
            color = looks[label]["color"]
            axes.fill_between(epochs, curve.min(0), curve.max(0), color=color, alpha=0.15)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 1)))
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 1)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel="validation perplexity")
    canvas.legend_below(figure, axes)
    return figure


def spectrum(results: Results, task: str) -> Figure | None:
    """Plot sigma_i / sigma_max of the log-probability matrix against i; dashed: the threshold."""
    ranks = {
        cell[1]: run["rank"]
        for cell in cells_of(results, task)
        for run in reversed(results.finished(cell))
        if "spectrum" in (run.get("rank") or {})
    }
    if not ranks:
        return None
    figure, axes = canvas.single(height=5.0)
    _lines(axes, results, task, {label: rank["spectrum"] for label, rank in ranks.items()})
    _threshold(axes, list(ranks.values()))
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="i", ylabel="singular value i / largest")
    canvas.legend_below(figure, axes)
    return figure


def function(results: Results, task: str) -> Figure | None:
    """Plot f(z) - f(0) of every learned function, and the identity."""
    learned = {
        cell[1]: run["function"]
        for cell in cells_of(results, task)
        for run in reversed(results.finished(cell))
        if "function" in run
    }
    if not learned:
        return None
    figure, axes = canvas.single(height=5.0)
    axes.axline((0, 0), slope=1, color=canvas.GREY, lw=1, ls="--")
    _lines(axes, results, task, learned)
    axes.set(xlabel="z", ylabel="f(z) - f(0)")
    canvas.legend_below(figure, axes)
    return figure


def _lines(
    axes: Axes, results: Results, task: str, curves: dict[str, list[tuple[float, float]]]
) -> None:
    """Join the points of each head."""
    looks = canvas.looks([label for _, label in cells_of(results, task)], BASELINE)
    for label, points in curves.items():
        plain = {key: looks[label][key] for key in ("color", "linestyle")}
        axes.plot(*zip(*points, strict=True), **plain, label=_escaped(label))


PLOTS = {
    "learning": (
        "Validation perplexity by epoch",
        "Mean over seeds; shaded: from the lowest to the highest.",
        learning,
    ),
    "spectrum": (
        "Singular values of the log-probability matrix",
        "Of the first seed; dashed: the threshold below which they count as 0.",
        spectrum,
    ),
    "function": (
        "The learned function",
        "f(z) - f(0) of p = softmax(f(z)), of the first seed; dashed: the identity, which is "
        "softmax.",
        function,
    ),
}


def _threshold(axes: Axes, ranks: list[dict[str, Any]]) -> None:
    """Draw the threshold 1/2 sqrt(M + T + 1) eps of each matrix size, with room below."""
    eps = float(np.finfo(np.float32).eps)
    sizes = {rank["contexts"] + rank["vocab"] for rank in ranks}
    thresholds = [0.5 * math.sqrt(size + 1) * eps for size in sorted(sizes)]
    for threshold in thresholds:
        axes.axhline(threshold, color=canvas.GREY, lw=1, ls="--")
    axes.set_ylim(min(thresholds) / 100, 2)


def _escaped(label: str) -> str:
    """Return the label with escaped dollars, because matplotlib would start a formula."""
    return label.replace("$", r"\$")


def _curves(results: Results, cell: Cell) -> np.ndarray:
    """Validation perplexities (runs, epochs), cut to the shortest run, without infinities."""
    runs = [
        np.array([epoch["valid_nll"] for epoch in run["epochs"]]) for run in results.finished(cell)
    ]
    length = min(map(len, runs), default=0)
    curves = np.exp([run[:length] for run in runs])
    return curves if np.isfinite(curves).all() else np.empty((0, 0))

"""The plots of one experiment. Each function returns its figure, or None with nothing to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator, NullFormatter

from experiments.language_modeling.measures import perplexity
from experiments.language_modeling.report.runs import BASELINE, Cell
from pipeline.report import canvas


def learning(cells: Sequence[Cell]) -> Figure | None:
    """Validation perplexity by epoch: mean over seeds, shaded from the lowest to the highest."""
    curves = {cell.label: _curves(cell) for cell in cells}
    # a single evaluation is no curve
    if max((curve.shape[-1] for curve in curves.values()), default=0) < 2:
        return None
    figure, axes = canvas.single(height=5.0)
    for look, (label, curve) in zip(_looks(cells), curves.items(), strict=True):
        if not curve.size:
            continue
        epochs = np.arange(1, curve.shape[1] + 1)
        marks = {**look, "markersize": 4, "markevery": -(-len(epochs) // 10)}
        axes.plot(epochs, curve.mean(0), **marks, label=_drawn(label))
        if len(curve) > 1:
            axes.fill_between(epochs, curve.min(0), curve.max(0), color=look["color"], alpha=0.15)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 1)))
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 1)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation perplexity")
    canvas.legend_below(figure, axes)
    return figure


def spectrum(cells: Sequence[Cell]) -> Figure | None:
    """sigma_i / sigma_max of the log-probability matrix against i; dashed: what counts as 0."""
    drawn = []
    for look, cell in zip(_looks(cells), cells, strict=True):
        ranks = [run.record["rank"] for run in cell.finished if run.record["rank"]]
        spectra = [rank for rank in ranks if "spectrum" in rank]
        if spectra:
            drawn.append((look, cell, spectra[0]))
    if not drawn:
        return None
    figure, axes = canvas.single(height=5.0)
    for look, cell, rank in drawn:
        places, values = zip(*rank["spectrum"], strict=True)
        plain = {"color": look["color"], "linestyle": look["linestyle"]}
        axes.plot(places, values, **plain, label=_drawn(cell.label))
    _threshold(axes, [rank for _, _, rank in drawn])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("i")
    axes.set_ylabel("singular value i / largest")
    canvas.legend_below(figure, axes)
    return figure


PLOTS = {
    "learning": (
        "Validation perplexity by epoch, mean over seeds; shaded: from the lowest to the highest.",
        learning,
    ),
    "spectrum": (
        "Singular values of the log-probability matrix of the first seed; dashed: the threshold "
        "below which they count as 0.",
        spectrum,
    ),
}


def _threshold(axes: Axes, ranks: list[dict[str, Any]]) -> None:
    """1/2 sqrt(M + T + 1) eps of each size of matrix there is, and room below for it."""
    eps = float(np.finfo(np.float32).eps)
    sizes = {rank["contexts"] + rank["vocab"] for rank in ranks}
    thresholds = [0.5 * math.sqrt(size + 1) * eps for size in sorted(sizes)]
    for threshold in thresholds:
        axes.axhline(threshold, color=canvas.GREY, lw=1, ls="--")
    axes.set_ylim(min(thresholds) / 100, 2)


def _looks(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    others = [cell for cell in cells if cell.label != BASELINE]
    return [
        canvas.BASE if cell.label == BASELINE else canvas.style(others.index(cell))
        for cell in cells
    ]


def _drawn(label: str) -> str:
    """The label as text: a dollar would begin a formula."""
    return label.replace("$", r"\$")


def _curves(cell: Cell) -> np.ndarray:
    """Validation perplexities (runs, epochs), cut to the shortest run; without what is inf."""
    runs = [
        [perplexity(epoch["valid_nll"]) for epoch in run.record["epochs"]] for run in cell.finished
    ]
    length = min(map(len, runs), default=0)
    curves = np.array([run[:length] for run in runs])
    return curves if np.isfinite(curves).all() else np.empty((0, 0))

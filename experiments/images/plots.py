"""Figures of the report: errors of all runs, and how they were learned."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from experiments.images.results import Results, error
from pipeline.report import canvas


def plot_errors(results: Results) -> Figure:
    """A dot for the test error of every run, a bar at the mean of each loss."""
    labels = [label for label in results.records if results.finished(label)]
    figure, axes = canvas.single(1.2 + 0.45 * len(labels))
    for place, label in enumerate(labels):
        look = _look(results, label)
        errors = list(results.by_seed(label, error).values())
        # one below the other where they would hide one another
        heights = [place + 0.12 * (k % 3 - 1) for k in range(len(errors))]
        axes.plot(errors, heights, look["marker"], color=look["color"], markersize=4.5, alpha=0.6)
        axes.plot([fmean(errors)] * 2, [place - 0.32, place + 0.32], color=look["color"])
    axes.set_yticks(range(len(labels)), [canvas.name(label) for label in labels])
    axes.invert_yaxis()
    axes.set_xlabel("test error in %")
    return figure


def plot_learning(results: Results) -> Figure:
    """Mean validation error by epoch; a run that has stopped keeps the error of its best epoch."""
    figure, axes = canvas.single()
    for label in results.records:
        runs = results.finished(label)
        if not runs:
            continue
        longest = max(run["epochs"] for run in runs)
        curves = [_curve(run, longest) for run in runs]
        means = [fmean(errors) for errors in zip(*curves, strict=True)]
        look = {**_look(results, label), "markersize": 3.5, "markevery": 5}
        axes.plot(range(1, longest + 1), means, label=canvas.name(label), **look)
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation error in %")
    axes.set_yscale("log")
    canvas.legend_below(figure, axes)
    return figure


def _curve(run: dict[str, Any], length: int) -> list[float]:
    """Validation errors in percent of every epoch, filled up to a length."""
    errors = [100 * epoch["error"] for epoch in run["history"]]
    return errors + [errors[run["best_epoch"] - 1]] * (length - len(errors))


def _look(results: Results, label: str) -> dict[str, Any]:
    if label == results.baseline:
        return canvas.BASE
    others = [name for name in results.records if name != results.baseline]
    return canvas.style(others.index(label))

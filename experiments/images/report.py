"""Report: measures of the losses, a table with the published numbers, and a figure."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from experiments.images.published import SOURCE, Published, published
from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.records import Record
from sparse_attn.engine.sweep.report import Column, mean_of, report
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import canvas, text
from sparse_attn.reports.measures import Measure
from sparse_attn.reports.page import Page, Plot, Table

BASELINE = "softmax"
NOTES = (
    "Run k of every loss has the same images in each part, first weights and order. The learning "
    "rate of a loss is the best on the validation images of another seed. Intervals are about "
    "other seeds and splits of these images, not about new images.",
    "mse: mean over classes of the squared error.",
)


def make_page(results: Results) -> Page:
    """Return the report of a sweep."""
    figures = []
    if any(results.finished(cell) for cell in results.cells):
        figures.append(Plot("learning", "Validation error by epoch", "", plot_learning(results)))
    return report(
        results,
        [ERROR, NEGLL],
        title=f"Losses on {results.sweep.data.name}, {results.sweep.data.split} split",
        seeds=results.sweep.runs,
        setup=_setup(results),
        setting=lambda record: f"lr {record.config['train']['learning_rate']:g}",
        baseline=baseline(results),
        columns=[
            Column("tried", "Validation error in % by rate", partial(_tried, results)),
            Column("seconds", "Seconds", mean_of(results, lambda run: run["seconds"]), "{:.0f}"),
        ],
        tables=[_published_table(results)],
        figures=figures,
        notes=NOTES,
    )


def error(run: dict[str, Any]) -> float:
    """Test error in percent."""
    return 100 * run["test"]["error"]


def criterion(run: dict[str, Any]) -> float:
    """The criterion on the test images."""
    return run["test"]["criterion"]


def negll(run: dict[str, Any]) -> float | None:
    """Mean -log p on the test images; None without probabilities."""
    found: float | None = run["test"].get("negll")
    return found


ERROR = Measure("Test error in %", error, -1)
NEGLL = Measure(
    "negll in nats",
    negll,
    -1,
    "{:.4f}",
    "nats",
    note="-log p of the true class on the test images, of softmax for bouchard.",
)


def baseline(results: Results) -> str | None:
    """The label of plain softmax, the baseline."""
    losses = results.sweep.losses.items()
    return next((label for label, loss in losses if loss.name == BASELINE), None)


def _setup(results: Results) -> list[list[str]]:
    runs = [run for cell in results.cells for run in results.finished(cell)]
    sizes = sorted({tuple(run["images"].items()) for run in runs})
    images = "; ".join(", ".join(f"{n:,} {part}" for part, n in size) for size in sizes)
    rows = [["runs of each loss", str(results.sweep.runs)], ["images", images or text.MISSING]]
    for label, loss in results.sweep.losses.items():
        params = [f"{name} {text.plain(value)}" for name, value in loss.params.items()]
        rows.append([label, ", ".join([loss.name, *params])])
    return rows


def _published_table(results: Results) -> Table:
    """Return criterion and error of every loss, with the published numbers."""
    title, theirs = published(results.sweep)
    rows = []
    for cell in results.cells:
        printed = theirs.get(cell[1], Published(*[text.NOTHING] * 3))
        runs = results.finished(cell)
        measure = runs[0]["measure"] + " " if runs else ""
        rows.append(
            [
                cell[1],
                measure + results.text(cell, criterion, "{:.4f}"),
                printed.criterion or text.NOTHING,
                results.text(cell, negll, "{:.4f}"),
                results.text(cell, error, "{:.2f}"),
                printed.error,
                results.text(cell, lambda run: run["best_epoch"], "{:.0f}"),
                results.text(cell, lambda run: run["epochs"], "{:.0f}"),
                printed.epochs or text.NOTHING,
            ]
        )
    return Table(
        "Criterion and error of the best epoch on the test images. Published, with standard "
        f"deviations in brackets: {SOURCE}, {title}; what is counted as epochs there is not said.",
        [
            *("loss", "criterion", "criterion, published", "negll"),
            *("error in %", "error in %, published"),
            *("best epoch", "epochs run", "epochs, published"),
        ],
        rows,
    )


def _tried(results: Results, cell: Cell) -> str:
    """Return the validation error of every learning rate tried."""
    trials = {r.config["train"]["learning_rate"]: r for r in results.of_stage(cell, "trial")}
    rates = results.sweep.losses[cell[1]].learning_rates
    return "; ".join(f"{rate:g}: {_outcome(trials.get(rate))}" for rate in rates)


def _outcome(trial: Record | None) -> str:
    if trial is None or trial.results is None:
        return "not run" if trial is None else trial.status
    return f"{100 * trial.results['validation']['error']:.2f}"


def plot_learning(results: Results) -> Figure:
    """Mean validation error by epoch; a stopped run keeps the error of its best epoch."""
    looks = canvas.looks(results.mappings, baseline(results))
    figure, axes = canvas.single()
    for cell in results.cells:
        runs = results.finished(cell)
        if not runs:
            continue
        longest = max(run["epochs"] for run in runs)
        curves = [_curve(run, longest) for run in runs]
        means = [fmean(errors) for errors in zip(*curves, strict=True)]
        look = {**looks[cell[1]], "markersize": 3.5, "markevery": 5}
        axes.plot(range(1, longest + 1), means, label=canvas.name(cell[1]), **look)
    axes.set(xlabel="epoch", ylabel="validation error in %", yscale="log")
    canvas.legend_below(figure, axes)
    return figure


def _curve(run: dict[str, Any], length: int) -> list[float]:
    """Validation errors in percent by epoch, padded to a length."""
    errors = [100 * epoch["error"] for epoch in run["history"]]
    return errors + [errors[run["best_epoch"] - 1]] * (length - len(errors))

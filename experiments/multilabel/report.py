"""Report: F1 of the methods, published numbers, and figures."""

from __future__ import annotations

from functools import partial
from operator import itemgetter

from experiments.multilabel import published
from experiments.multilabel.config import BASELINE
from experiments.multilabel.measures import by_threshold, f1
from experiments.multilabel.plots import plot_axis, plot_curves
from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.report import Column, mean_of, report
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import text
from sparse_attn.reports.measures import Measure
from sparse_attn.reports.page import Page, Plot, Table
from sparse_attn.reports.seed_statistics import Estimate

MEASURES = (
    Measure("Micro-F1 in %", f1("micro"), note="F1 of all decisions at once."),
    Measure("Macro-F1 in %", f1("macro"), note="Mean over labels."),
    Measure("F1 by row in %", f1("samples"), note="Mean over rows; a row without labels counts 0."),
)
BARS = (
    "Lines: means over seeds; bars: one standard deviation to each side; grey: softmax, from its "
    "worst threshold to its best."
)
NOTES = (
    "Epoch and threshold, and the learning rate where several were tried, are those of the best "
    "micro-F1 on the validation set. F1 is measured on the test set, once, at the end; on the "
    "validation set where the data has no test set.",
    "Not settled: finished runs with the best epoch in the last tenth of the training.",
)


def make_page(results: Results) -> Page:
    """Return the report of a sweep."""
    figures = {
        "labels": ("Micro-F1 by the mean number of labels", BARS, plot_axis(results, "labels")),
        "length": ("Micro-F1 by document length", BARS, plot_axis(results, "length")),
        "curves": ("Micro-F1 on the validation set by epoch", "", plot_curves(results)),
    }
    tables = [
        _beside_published(results),
        *(_thresholds(results, method) for method in results.mappings),
    ]
    return report(
        results,
        MEASURES,
        title="Multi-label classification",
        seeds=results.sweep.seeds,
        setup=_setup(results),
        setting=lambda record: f"lr {record.config['train']['learning_rate']:g}",
        baseline=baseline(results),
        columns=[
            Column(
                "decided_labels", "Labels decided on", partial(_mean, results, "decided_labels")
            ),
            Column("true_labels", "True labels", partial(_mean, results, "true_labels")),
            Column("not_settled", "Not settled", partial(_not_settled, results)),
            Column("seconds", "Seconds", mean_of(results, itemgetter("seconds")), "{:.1f}"),
        ],
        tables=[table for table in tables if table is not None],
        figures=[
            Plot(name, title, caption, figure)
            for name, (title, caption, figure) in figures.items()
            if figure
        ],
        notes=NOTES,
    )


def baseline(results: Results) -> str:
    """Return the softmax with the most thresholds, because the paper's do not suit all tasks."""
    methods = results.sweep.methods
    plain = [name for name in results.mappings if methods[name].mapping == BASELINE]
    return max(plain, key=lambda name: len(methods[name].thresholds))


def _setup(results: Results) -> list[list[str]]:
    sweep, train = results.sweep, results.sweep.train
    runs = [(cell[0], run) for cell in results.cells for run in results.finished(cell)]
    untested = {task for task, run in runs if run["measured_on"] == "validation"}
    stop = text.NOTHING if train.stop_after is None else f"{train.stop_after:,}"
    return [
        ["data sets", str(len(sweep.data))],
        ["without a test set", ", ".join(d for d in results.tasks if d in untested) or "none"],
        ["methods", str(len(sweep.methods))],
        ["seeds", str(sweep.seeds)],
        ["optimizer", "Adam"],
        ["learning rates", ", ".join(map(text.plain, sweep.learning_rates))],
        ["epochs at most", f"{train.epochs:,}"],
        ["stopped after epochs without a better one", stop],
        ["batch size", str(train.batch_size)],
    ]


def _thresholds(results: Results, method: str) -> Table | None:
    """micro-F1 at each threshold; None for a method with a single threshold."""
    names = results.sweep.methods[method].thresholds
    if len(names) < 2:
        return None
    rows = []
    for data in results.tasks:
        found = by_threshold(results, (data, method))
        rows.append([data, *(_text(found.get(str(name))) for name in names)])
    caption = (
        f"{method}: micro-F1 in % at each threshold, of the weights whose epoch was chosen at the "
        "threshold best on the validation set."
    )
    return Table(caption, ["data", *map(text.plain, names)], rows)


def _mean(results: Results, key: str, cell: Cell) -> str:
    return results.text(cell, itemgetter(key), "{:.2f}")


def _not_settled(results: Results, cell: Cell) -> int:
    end = 0.9 * results.sweep.train.epochs
    return sum(run["best_epoch"] > end for run in results.finished(cell))


def _beside_published(results: Results) -> Table | None:
    """Return our numbers with table 1 of the paper; None without its data sets."""
    rows = []
    for data, config in results.sweep.data.items():
        if config.images is None:
            continue
        column = published.COLUMNS[config.images.source]
        found = by_threshold(results, (data, BASELINE))
        for name, values in published.SOFTMAX.items():
            ours = _text(found.get(name))
            rows.append([data, f"{BASELINE}, p0 = {name}", f"{values[column]:.2f}", ours])
        for method in results.mappings:
            printed = published.METHODS.get(method)
            theirs = f"{printed[column]:.2f}" if printed else text.NOTHING
            ours = _text(results.spread((data, method), f1("micro")))
            rows.append([data, method, theirs, ours])
    caption = (
        f"F1 in %. Published: {published.SOURCE}. Ours: micro-F1 on the test set, on the "
        "validation set where there is none, at the rate, epoch and threshold that are best on the "
        "validation set; softmax at each p0 with the weights of that one epoch."
    )
    return Table(caption, ["data", "method", "published", "ours"], rows) if rows else None


def _text(found: Estimate | None) -> str:
    return found.text("{:.2f}") if found else text.NOTHING

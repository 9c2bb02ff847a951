"""Report: tables, including published numbers, and figures."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from experiments.multilabel import published
from experiments.multilabel.config import BASELINE, SIGMOID
from experiments.multilabel.measures import by_threshold, f1
from experiments.multilabel.plots import plot_axis, plot_curves
from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.results import Results, ended
from sparse_attn.reports import text
from sparse_attn.reports.page import Block, Page, Plot, Status, Table
from sparse_attn.reports.seed_statistics import Estimate
from sparse_attn.reports.verdicts import Measured, verdict_tables

CONTROLS = (BASELINE, SIGMOID)  # includes softmax with other thresholds

CAPTIONS = {
    "micro": "Micro-F1 in %: all decisions at once",
    "macro": "Macro-F1 in %: mean over labels",
    "samples": "F1 by row in %: mean over rows; a row without labels counts 0",
}

BARS = (
    "Lines: means over seeds; bars: one standard deviation to each side; grey: softmax, from its "
    "worst threshold to its best."
)


def make_page(results: Results) -> Page:
    """The report of a sweep."""
    figures = {
        "labels": ("micro-F1 by the mean number of labels", BARS, plot_axis(results, "labels")),
        "length": ("micro-F1 by document length", BARS, plot_axis(results, "length")),
        "curves": ("micro-F1 on the validation set by epoch", "", plot_curves(results)),
    }
    micro = scores(results, "micro")
    tables = [
        _beside_published(results),
        micro,
        _differences(results),
        scores(results, "macro"),
        scores(results, "samples"),
        *(_thresholds(results, method) for method in results.mappings),
        _label_counts(results),
        _rates(results) if len(results.sweep.learning_rates) > 1 else None,
        _runs(results),
    ]
    blocks: list[Block] = [
        *method_verdicts(results),
        _settings(results),
        results.standing,
        *(
            Plot(name, title, said, drawn)
            for name, (title, said, drawn) in figures.items()
            if drawn
        ),
        *(table for table in tables if table is not None),
        *map(Status, results.left_out),
    ]
    return Page("Multi-label classification", blocks, [micro])


def baseline(results: Results) -> str:
    """Return the softmax with the most thresholds, because the paper's do not suit all tasks."""
    methods = results.sweep.methods
    plain = [name for name in results.mappings if methods[name].mapping == BASELINE]
    return max(plain, key=lambda name: len(methods[name].thresholds))


def method_verdicts(results: Results) -> list[Table]:
    """Return the verdicts of all differences from the baseline, by average, without controls."""
    base, methods = baseline(results), results.sweep.methods
    controls = [name for name in results.mappings if methods[name].mapping in CONTROLS]
    found = [
        Measured(f"{average}-F1", "points", "{:.2f}", 1, results.against(base, f1(average)))
        for average in CAPTIONS
    ]
    return verdict_tables(found, base, [name for name in controls if name != base])


def _settings(results: Results) -> Table:
    sweep, train = results.sweep, results.sweep.train
    runs = [(cell[0], run) for cell in results.cells for run in results.finished(cell)]
    untested = {task for task, run in runs if run["measured_on"] == "validation"}
    caption = (
        "Epoch and threshold, and the learning rate where several were tried, are those of the "
        "best micro-F1 on the validation set. F1 is measured on the test set, once, at the end; on "
        "the validation set where the data has no test set."
    )
    stop = text.NOTHING if train.stop_after is None else f"{train.stop_after:,}"
    rows = [
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
    return Table(caption, ["setting", "value"], rows)


def scores(results: Results, average: str) -> Table:
    """F1 of every method on every data set."""
    caption = f"{CAPTIONS[average]}; mean ± standard deviation over seeds."
    return _by_data(results, caption, lambda cell: _text(results.spread(cell, f1(average))))


def _differences(results: Results) -> Table:
    """Difference of every method from softmax in micro-F1."""
    base = baseline(results)
    pairs = results.against(base, f1("micro"))

    def show(cell: Cell) -> str:
        found = pairs.get(cell)
        return found.text("{:+.2f}") if found else text.NOTHING

    caption = (
        f"Micro-F1 less that of {base}, in points: mean over pairs of runs with one seed, and "
        "its 95 % t interval. The intervals are not adjusted for their number."
    )
    return _by_data(results, caption, show, [m for m in results.mappings if m != base])


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


def _label_counts(results: Results) -> Table:
    """Mean number of labels decided per row, and the true number."""
    table = _by_data(
        results,
        "Mean number of labels decided on in a row, and the true one.",
        lambda cell: _text(results.spread(cell, lambda run: run["decided_labels"])),
    )
    rows = [
        [*row, _text(results.spread((row[0], BASELINE), lambda run: run["true_labels"]))]
        for row in table.rows
    ]
    return Table(table.caption, [*table.headers, "true"], rows)


def _rates(results: Results) -> Table:
    """The chosen learning rates."""

    def show(cell: Cell) -> str:
        found = {record.config["train"]["learning_rate"] for record in results.counting(cell)}
        return ", ".join(map(text.plain, sorted(found))) or text.NOTHING

    return _by_data(results, "Learning rates chosen on the validation set.", show)


def _runs(results: Results) -> Table:
    """Return status, number of runs that had not settled, and time for every method."""
    rows, end = [], 0.9 * results.sweep.train.epochs
    for method in results.mappings:
        cells = [(data, method) for data in results.tasks]
        count = ended(record for cell in cells for record in results.counting(cell))
        missing = results.sweep.seeds * len(cells) - count.total()
        finished = [run for cell in cells for run in results.finished(cell)]
        late = sum(run["best_epoch"] > end for run in finished)
        counts = [*(count[status] for status in ("finished", "diverged", "failed")), missing, late]
        mean = f"{fmean(run['seconds'] for run in finished):.1f}" if finished else text.NOTHING
        rows.append([method, *map(str, counts), mean])
    caption = (
        "Runs that count; diverged and failed ones have no F1. Not settled: finished, with the "
        "best epoch in the last tenth of the training."
    )
    headers = ["method", "finished", "diverged", "failed", "missing", "not settled"]
    return Table(caption, [*headers, "seconds a run"], rows)


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


def _by_data(
    results: Results,
    caption: str,
    show: Callable[[Cell], str],
    methods: list[str] | None = None,
) -> Table:
    """Return a table with a row per data set and a column per method."""
    methods = results.mappings if methods is None else methods
    rows = [[data, *(show((data, method)) for method in methods)] for data in results.tasks]
    return Table(caption, ["data", *methods], rows)


def _text(found: Estimate | None) -> str:
    return found.text("{:.2f}") if found else text.NOTHING

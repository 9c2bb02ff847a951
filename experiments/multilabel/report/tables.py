"""The tables of the page."""

from __future__ import annotations

from experiments.multilabel.config import BASELINE
from experiments.multilabel.report import published
from experiments.multilabel.report.results import Measure, Results, f1
from pipeline.report import text
from pipeline.report.table import Table

CAPTIONS = {
    "micro": "Micro-F1 in %: all decisions at once",
    "macro": "Macro-F1 in %: mean over labels",
    "samples": "F1 by row in %: mean over rows; a row without labels counts 0",
}


def scores(results: Results, average: str) -> Table:
    """F1 of every method on every data set."""
    caption = f"{CAPTIONS[average]}; mean ± standard deviation over seeds."
    return _by_data(results, caption, f1(average), "{:.2f}")


def differences(results: Results) -> Table:
    """Every method's micro-F1 less that of softmax."""
    others = [method for method in results.methods if method != BASELINE]
    rows = []
    for data in results.data:
        found = (results.difference(data, m, BASELINE, f1("micro")) for m in others)
        rows.append([data, *(d.text("{:+.2f}") if d else text.NOTHING for d in found)])
    caption = (
        f"Micro-F1 less that of {BASELINE}, in points: mean over pairs of runs with one seed, and "
        "its 95 % t interval. The intervals are not adjusted for their number."
    )
    return Table(caption, ["data", *others], rows)


def thresholds(results: Results, method: str) -> Table | None:
    """micro-F1 at each threshold, None for a method that has one alone."""
    names = results.content["methods"][method]["thresholds"]
    if len(names) < 2:
        return None
    rows = []
    for data in results.data:
        found = results.by_threshold(data, method)
        means = [found[str(n)].text("{:.2f}") if str(n) in found else text.NOTHING for n in names]
        rows.append([data, *means])
    caption = (
        f"{method}: micro-F1 in % at each threshold, of the weights whose epoch was chosen at the "
        "threshold best on the validation set."
    )
    return Table(caption, ["data", *(text.plain(name) for name in names)], rows)


def label_counts(results: Results) -> Table:
    """How many labels a method finds in a row, and how many there are."""
    caption = "Mean number of labels decided on in a row, and the true one."
    table = _by_data(results, caption, lambda run: run["decided_labels"], "{:.2f}")
    rows = []
    for row in table.rows:
        true = results.estimate(row[0], BASELINE, lambda run: run["true_labels"])
        rows.append([*row, true.text("{:.2f}") if true else text.NOTHING])
    return Table(caption, [*table.headers, "true"], rows)


def rates(results: Results) -> Table:
    """The learning rates that were chosen."""
    rows = []
    for data in results.data:
        cells = [results.counting(data, method) for method in results.methods]
        found = [{run.config["train"]["learning_rate"] for run in cell} for cell in cells]
        rows.append([data, *(", ".join(map(text.plain, sorted(f))) or text.NOTHING for f in found)])
    return Table("Learning rates chosen on the validation set.", ["data", *results.methods], rows)


def runs(results: Results) -> Table:
    """What became of the runs of every method, and how long they took."""
    rows = []
    for method in results.methods:
        ended = results.ended(method)
        seconds = [
            record.results["seconds"]
            for data in results.data
            for record in results.counting(data, method)
            if record.results
        ]
        mean = f"{sum(seconds) / len(seconds):.1f}" if seconds else text.NOTHING
        counts = [str(ended[status]) for status in ("finished", "diverged", "failed", "missing")]
        rows.append([method, *counts, mean])
    headers = ["method", "finished", "diverged", "failed", "missing", "seconds a run"]
    return Table("Runs that count; diverged and failed ones have no F1.", headers, rows)


def beside_published(results: Results) -> Table | None:
    """Ours beside table 1 of the paper, None where there are no images of it."""
    columns = {
        name: published.COLUMNS[data["images"]["source"]]
        for name, data in results.content["data"].items()
        if data["images"] is not None and data["images"]["source"] in published.COLUMNS
    }
    if not columns:
        return None
    rows = []
    for data, column in columns.items():
        by_threshold = results.by_threshold(data, BASELINE)
        for name, values in published.SOFTMAX.items():
            ours = by_threshold.get(name)
            shown = ours.text("{:.2f}") if ours else text.NOTHING
            rows.append([data, f"{BASELINE}, p0 = {name}", f"{values[column]:.2f}", shown])
        for method in results.methods:
            theirs = published.METHODS.get(method)
            estimate = results.estimate(data, method, f1("micro"))
            rows.append(
                [
                    data,
                    method,
                    f"{theirs[column]:.2f}" if theirs else text.NOTHING,
                    estimate.text("{:.2f}") if estimate else text.NOTHING,
                ]
            )
    caption = (
        f"F1 in %. Published: {published.SOURCE}. Ours: micro-F1 on the test set, on the "
        "validation set where there is none, at the rate, epoch and threshold that are best on the "
        "validation set; softmax at each p0 with the weights of that one epoch."
    )
    return Table(caption, ["data", "method", "published", "ours"], rows)


def _by_data(results: Results, caption: str, measure: Measure, pattern: str) -> Table:
    """Data sets down, methods across."""
    rows = []
    for data in results.data:
        found = (results.estimate(data, method, measure) for method in results.methods)
        rows.append([data, *(e.text(pattern) if e else text.NOTHING for e in found)])
    return Table(caption, ["data", *results.methods], rows)

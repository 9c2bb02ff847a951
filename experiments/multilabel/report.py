"""The report: tables, including published numbers, and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import fmean

from engine.sweep.plan import Cell
from engine.sweep.results import Results, ended
from experiments.multilabel import published
from experiments.multilabel.config import BASELINE, SIGMOID, MethodConfig
from experiments.multilabel.measures import by_threshold, f1
from experiments.multilabel.plots import plot_axis, plot_curves
from sparse_attn.reports import text
from sparse_attn.reports.page import Block, Bullets, Page, Plot, Status, Table
from sparse_attn.reports.seed_statistics import Difference, Estimate, flips, reach, tally

Pairs = dict[Cell, Difference | None]

CONTROLS = (BASELINE, SIGMOID)  # softmax with other thresholds among them

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
    base = baseline(results)
    pairs = {average: results.against(base, f1(average)) for average in CAPTIONS}
    micro = scores(results, "micro")
    tables = [
        _beside_published(results),
        micro,
        _differences(results, base, pairs["micro"]),
        scores(results, "macro"),
        scores(results, "samples"),
        *(_thresholds(results, method) for method in results.mappings),
        _label_counts(results),
        _rates(results) if len(results.sweep.learning_rates) > 1 else None,
        _runs(results),
    ]
    blocks: list[Block] = [
        *_found(pairs, base, results.sweep.methods),
        *_unsettled(results),
        _answer(results, base, pairs["micro"]),
        _head(results),
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
    """The softmax with the most thresholds: those of the paper cannot suit all tasks."""
    methods = results.sweep.methods
    plain = [name for name in results.mappings if methods[name].mapping == BASELINE]
    return max(plain, key=lambda name: len(methods[name].thresholds))


def _found(found: dict[str, Pairs], base: str, methods: dict[str, MethodConfig]) -> list[Block]:
    """What was found, what would have shown, and where the conclusion depends on the metric."""
    lines: list[Block] = []
    for average, pairs in found.items():
        counting = [
            pair for (_, name), pair in pairs.items() if methods[name].mapping not in CONTROLS
        ]
        counted = tally(counting, base)
        known = reach(filter(None, counting), "{:.2f}", "points")
        said = f"{average}-F1, controls ({text.listing(list(CONTROLS))}) left out: "
        lines += [said + " ".join([*counted, *known])] * bool(counted)
    sides = [
        (method, data, f"{average}-F1", pair.side)
        for average, pairs in found.items()
        for (data, method), pair in pairs.items()
        if pair
    ]
    if turned := flips(sides):
        lines += ["The conclusion depends on the metric:", Bullets(turned)]
    return lines


def _unsettled(results: Results) -> list[str]:
    """Methods of which a quarter of the runs or more have their best epoch in the last tenth."""
    late = {}
    for method in results.mappings:
        runs = [run for data in results.tasks for run in results.finished((data, method))]
        end = 0.9 * results.sweep.train.epochs
        count = sum(run["best_epoch"] > end for run in runs)
        if runs and count >= len(runs) / 4:
            late[method] = f"{method} ({count} of {len(runs)})"
    if not late:
        return []
    return [
        "Runs whose best epoch is in the last tenth of the training, which had not settled: "
        f"{text.listing(list(late.values()))}."
    ]


def _answer(results: Results, base: str, pairs: Pairs) -> Table:
    """Number of data sets on which each method differs from softmax."""
    sides: dict[str, Counter[int]] = {m: Counter() for m in results.mappings if m != base}
    for (_, method), pair in pairs.items():
        if pair:
            sides[method][pair.side] += 1
    rows = [[method, *(str(count[side]) for side in (1, -1, 0))] for method, count in sides.items()]
    caption = (
        f"Data sets, of {len(results.tasks)}, on which a method's micro-F1 is above or below that "
        f"of {base}: the 95 % t interval over pairs of runs leaves out 0. The intervals are "
        "not adjusted for their number."
    )
    return Table(caption, ["method", "better", "worse", "no difference shown"], rows)


def _head(results: Results) -> str:
    sweep = results.sweep
    rates = ", ".join(map(text.plain, sweep.learning_rates))
    chosen = f"the best of {rates} on the validation set" if "," in rates else rates
    runs = [(cell[0], run) for cell in results.cells for run in results.finished(cell)]
    untested = {task for task, run in runs if run["measured_on"] == "validation"}
    names = text.listing([name for name in results.tasks if name in untested])
    train = sweep.train
    most = ""
    if train.stop_after is not None:
        most = f", or until {train.stop_after:,} pass without a better one"
    return (
        f"{text.counted(len(sweep.data), 'data set')}, "
        f"{text.counted(len(sweep.methods), 'method')}, {text.counted(sweep.seeds, 'seed')}. "
        f"Adam, learning rate {chosen}, {text.counted(train.epochs, 'epoch')}{most}, batches of "
        f"{train.batch_size}. Epoch and threshold are those of the best micro-F1 on the "
        "validation set; F1 is that on the test set, looked at once, at the end"
        f"{f' (on the validation set again for {names})' if names else ''}. {results.standing}"
    )


def scores(results: Results, average: str) -> Table:
    """F1 of every method on every data set."""
    caption = f"{CAPTIONS[average]}; mean ± standard deviation over seeds."
    return _by_data(results, caption, lambda cell: _text(results.spread(cell, f1(average))))


def _differences(results: Results, base: str, pairs: Pairs) -> Table:
    """Difference of every method from softmax in micro-F1."""

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
    """Status of the runs of every method, and their time."""
    rows = []
    for method in results.mappings:
        cells = [(data, method) for data in results.tasks]
        count = ended(record for cell in cells for record in results.counting(cell))
        missing = results.sweep.seeds * len(cells) - count.total()
        seconds = [run["seconds"] for cell in cells for run in results.finished(cell)]
        counts = [*(count[status] for status in ("finished", "diverged", "failed")), missing]
        mean = f"{fmean(seconds):.1f}" if seconds else text.NOTHING
        rows.append([method, *map(str, counts), mean])
    headers = ["method", "finished", "diverged", "failed", "missing", "seconds a run"]
    return Table("Runs that count; diverged and failed ones have no F1.", headers, rows)


def _beside_published(results: Results) -> Table | None:
    """Ours beside table 1 of the paper; None without its data sets."""
    rows = []
    for data, config in results.sweep.data.items():
        if config.images is None or config.images.source not in published.COLUMNS:
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
    """A row per data set, a column per method."""
    methods = results.mappings if methods is None else methods
    rows = [[data, *(show((data, method)) for method in methods)] for data in results.tasks]
    return Table(caption, ["data", *methods], rows)


def _text(found: Estimate | None) -> str:
    return found.text("{:.2f}") if found else text.NOTHING

"""Report: accuracy and exact zeros by length."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from sparse_attn.engine.sweep.report import report
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import canvas, text
from sparse_attn.reports.measures import Measure
from sparse_attn.reports.page import Page, Plot, Table

BASELINE = "softmax"
PAIRS = (
    "Differences in points, paired by seed, with the 95 % intervals of a t-test without correction."
)
ACCURACY = "Symbols asked for that are predicted, in %: mean ± standard deviation."
WRONG = "Wrong predictions in %: median of the seeds, the worst seed, and how many have none."


def make_page(results: Results) -> Page:
    """Return the report of a sweep."""
    longest = f"Accuracy in % at {results.sweep.lengths[-1]:,} tokens"
    figures = []
    if any(map(results.finished, results.cells)):
        figures.append(Plot("accuracy", "Accuracy by length", "", _plot(results)))
    return report(
        results,
        [Measure(longest, lambda run: run["score"], pattern="{:.1f}")],
        title="Length generalisation",
        seeds=results.sweep.seeds,
        setup=_setup(results),
        setting=lambda record: f"lr {text.plain(results.sweep.learning_rate)}",
        figures=figures,
        tables=[
            _table(results, "accuracy", ACCURACY),
            _wrong(results),
            _pairs(results),
            _table(results, "zeros", "Exact zeros in attention, in %."),
        ],
    )


def _at(key: str, place: int, run: dict[str, Any]) -> float:
    return float(run[key][place])


def _table(results: Results, key: str, caption: str) -> Table:
    """A row per attention function, a column per length."""
    lengths = results.sweep.lengths
    rows = []
    for cell in results.cells:
        shown = [results.text(cell, partial(_at, key, i), "{:.1f}") for i in range(len(lengths))]
        rows.append([cell[1], *shown])
    return Table(caption, ["attention", *(f"{length:,}" for length in lengths)], rows)


def _wrong(results: Results) -> Table:
    """A row per attention function, a column per length."""
    lengths = results.sweep.lengths
    rows = []
    for cell in results.cells:
        row = [cell[1]]
        for i in range(len(lengths)):
            wrong = [100 - run["accuracy"][i] for run in results.finished(cell)]
            known = [median(wrong), max(wrong), wrong.count(0)] if wrong else []
            row.append(", ".join(map("{:.2g}".format, known)) or text.MISSING)
        rows.append(row)
    return Table(WRONG, ["attention", *(f"{length:,}" for length in lengths)], rows)


def _pairs(results: Results) -> Table:
    """A row per pair of attention functions, a column per length."""
    lengths = results.sweep.lengths
    at = [Measure("", partial(_at, "accuracy", i)) for i in range(len(lengths))]
    rows = []
    for first, second in combinations(results.cells, 2):
        base, ours = results.runs(first), results.runs(second)
        found = [measure.difference(ours, base) for measure in at]
        shown = [difference.text("{:+.1f}") if difference else text.MISSING for difference in found]
        rows.append([f"{second[1]} - {first[1]}", *shown])
    return Table(PAIRS, ["difference", *(f"{length:,}" for length in lengths)], rows)


def _setup(results: Results) -> list[list[str]]:
    sweep = results.sweep
    return [
        ["task", sweep.task],
        ["tokens of a text in training", _train_lengths(sweep)],
        ["symbols", str(sweep.symbols)],
        ["layers, hidden size, heads", f"{sweep.layers}, {sweep.hidden_size}, {sweep.heads}"],
        ["window of layers with positions", str(sweep.window)],
        ["steps", f"{sweep.steps:,}"],
        ["batch size", str(sweep.batch)],
        ["learning rate of all", text.plain(sweep.learning_rate)],
        ["texts of a test", str(sweep.texts)],
        ["seeds", str(sweep.seeds)],
        *([label, _described(config)] for label, config in sweep.attentions.items()),
    ]


def _train_lengths(sweep: Any) -> str:
    ends = {sweep.get_task().shortest(sweep.train_length), sweep.train_length}
    return " to ".join(map(str, sorted(ends)))


def _described(attention: Any) -> str:
    parts = [attention.name, *(f"{name} {value:g}" for name, value in attention.params.items())]
    parts += [f"{name} learned" for name in attention.learn]
    return ", ".join(parts) + ("" if attention.per == "layer" else f", per {attention.per}")


def _plot(results: Results) -> Figure:
    figure, axes = canvas.single(4.2)
    lengths = results.sweep.lengths
    for label, look in canvas.looks(results.mappings, BASELINE).items():
        spreads = [
            results.spread((results.sweep.task, label), partial(_at, "accuracy", i))
            for i in range(len(lengths))
        ]
        known = [(n, spread) for n, spread in zip(lengths, spreads, strict=True) if spread]
        axes.errorbar(
            [n for n, _ in known],
            [spread.mean for _, spread in known],
            yerr=[spread.sd or 0.0 for _, spread in known],
            **look,
            label=canvas.name(label),
            capsize=3,
        )
    axes.axvline(results.sweep.train_length, color=canvas.GREY, lw=1, ls=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.set(xlabel="tokens (dotted: in training)", ylabel="accuracy in %")
    canvas.legend_below(figure, axes)
    return figure

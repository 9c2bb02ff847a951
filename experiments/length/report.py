"""Report: accuracy and exact zeros by length."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib.figure import Figure

from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import canvas, text
from sparse_attn.reports.page import Block, Heading, Page, Plot, Status, Table
from sparse_attn.reports.verdicts import Measured, verdict_tables

BASELINE = "softmax"
ACCURACY = "Symbols of the queried values that are predicted, in %: mean ± standard deviation."


def make_page(results: Results) -> Page:
    """The report of a sweep."""
    accuracy = accuracy_table(results)
    blocks: list[Block] = [accuracy]
    if any(map(results.finished, results.cells)):
        blocks.append(Plot("accuracy", "Accuracy by length", "", _plot(results)))
    title = f"Accuracy at {results.sweep.lengths[-1]:,} tokens"
    differences = results.against(BASELINE, lambda run: float(run["score"]))
    blocks += [
        *verdict_tables([Measured(title, "points", "{:.1f}", 1, differences)], BASELINE),
        Heading("Exact zeros"),
        _table(results, "zeros", "Share of exact zeros in attention, in %."),
        Heading("Settings"),
        _settings(results),
        results.standing,
        *map(Status, results.left_out),
    ]
    return Page("Length generalisation", blocks, [accuracy])


def accuracy_table(results: Results) -> Table:
    """Return the accuracy by length."""
    return _table(results, "accuracy", ACCURACY)


def _at(key: str, place: int, run: dict[str, Any]) -> float:
    return float(run[key][place])


def _table(results: Results, key: str, caption: str) -> Table:
    """A row per attention function, a column per length."""
    lengths = results.sweep.lengths
    rows = []
    for cell in results.cells:
        diverged = results.diverged(cell)
        shown = [results.text(cell, partial(_at, key, i), "{:.1f}") for i in range(len(lengths))]
        rows.append([f"{cell[1]} ({diverged} diverged)" if diverged else cell[1], *shown])
    return Table(caption, ["attention", *(f"{length:,}" for length in lengths)], rows)


def _settings(results: Results) -> Table:
    sweep = results.sweep
    rows = [
        ["tokens of a text in training", str(sweep.train_length)],
        ["symbols", str(sweep.symbols)],
        ["layers, hidden size, heads", f"{sweep.layers}, {sweep.hidden_size}, {sweep.heads}"],
        ["window of layers with positions", str(sweep.window)],
        ["steps", f"{sweep.steps:,}"],
        ["batch size", str(sweep.batch)],
        ["learning rate", text.plain(sweep.learning_rate)],
        ["texts of a test", str(sweep.texts)],
        ["seeds", str(sweep.seeds)],
        *([label, _described(config)] for label, config in sweep.attentions.items()),
    ]
    caption = "The same for all attention functions; the learning rate was not tuned for any."
    return Table(caption, ["setting", "value"], rows)


def _described(attention: Any) -> str:
    parts = [attention.name, *(f"{name} {value:g}" for name, value in attention.params.items())]
    parts += [f"{name} learned" for name in attention.learn]
    return ", ".join(parts) + ("" if attention.per == "layer" else f", per {attention.per}")


def _plot(results: Results) -> Figure:
    figure, axes = canvas.single(4.2)
    lengths = results.sweep.lengths
    for label, look in canvas.looks(results.mappings, BASELINE).items():
        spreads = [
            results.spread(("recall", label), partial(_at, "accuracy", i))
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

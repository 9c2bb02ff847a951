"""Report: exact zeros and quality after conversion by each way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from engine.sweep.results import Results
from experiments.conversion.ways import CONTINUED, RANDOM, WAYS
from sparse_attn.reports import bootstrap, canvas, text
from sparse_attn.reports.page import Block, Bullets, Heading, Page, Plot, Status, Table
from sparse_attn.reports.seed_statistics import Difference, paired

CAPTION = (
    "On the pairs. Zeros: share of exact zeros in attention, in %; Spearman: correlation x 100, "
    "mean ± standard deviation over seeds; verdict: by the interval before rounding, not adjusted "
    "for their number; cosine: of embeddings with softmax's; minutes: of the conversion."
)
SETTINGS = (
    "All that train have the same texts. No rate was tuned and no run stopped early: the pairs "
    "chose nothing in a run. Picking the best way on these pairs flatters its difference. "
    "Intervals: of one run by a paired bootstrap over the pairs, of several by t over the runs."
)
PLOT = (
    "Ways with zeros, their intervals against softmax (dashed; dotted: the same training without "
    f"zeros). Without the control, {RANDOM}."
)
HEADERS = (
    *("zeros", "last layer's", "Spearman", "from softmax [95 %]", "verdict"),
    *("cosine", "minutes"),
)
Runs = list[dict[str, Any]]
COLUMNS: dict[str, tuple[Callable[[dict[str, Any]], float], str]] = {
    "zeros": (lambda run: 100 * run["zeros"], "{:.1f}"),
    "last layer's": (lambda run: 100 * run["layers"][-1], "{:.1f}"),
    "Spearman": (lambda run: run["score"], "{:.2f}"),
    "cosine": (lambda run: run["agreement"], "{:.3f}"),
    "minutes": (lambda run: run["seconds"] / 60, "{:.1f}"),
}


def make_page(results: Results) -> Page:
    """The report of a sweep."""
    found = {
        way: runs for cell in results.cells for way, runs in [(cell[1], results.finished(cell))]
    }
    finished = {way: runs for way, runs in found.items() if runs}
    table = _table(results, finished)
    blocks: list[Block] = [table, _settings(results, finished), results.standing]
    blocks += map(Status, results.left_out)
    blocks.append(Bullets([f"{way}: {WAYS[way].about}." for way in results.mappings]))
    sparse = {way: runs for way, runs in finished.items() if way not in (CONTINUED, RANDOM)}
    if sparse:
        blocks += [Heading("Quality by zeros"), Plot("quality", "", PLOT, _plot(finished, sparse))]
    if finished:
        blocks += [Heading("Zeros by layer"), _layers(finished)]
    return Page("Ways to make a model sparse", blocks, [table])


def _mean(runs: Runs, column: str) -> float:
    value, _ = COLUMNS[column]
    return sum(map(value, runs)) / len(runs)


def difference(runs: Runs) -> Difference:
    """Return the difference from softmax, with an interval over runs; for one, over examples."""
    values = {place: run["difference"]["value"] for place, run in enumerate(runs)}
    # softmax is the unchanged model, the same for every seed
    found = paired(values, dict.fromkeys(values, 0.0))
    assert found is not None
    if len(runs) > 1:
        return found
    low, high = runs[0]["difference"]["interval"]
    return found._replace(interval=(low, high))


def _table(results: Results, finished: dict[str, Runs]) -> Table:
    """Return a table with a row for softmax and one for each way."""
    rows = []
    if finished:
        softmax = next(iter(finished.values()))[0]["softmax"]
        ends = [text.NOTHING, text.NOTHING, "1.000", "0.0"]
        rows.append(["softmax", "0.0", "0.0", f"{softmax:.2f}", *ends])
    for cell in results.cells:
        shown = {name: results.text(cell, *column) for name, column in COLUMNS.items()}
        found = difference(finished[cell[1]]) if cell[1] in finished else None
        shown["from softmax [95 %]"] = found.text("{:+.2f}") if found else text.MISSING
        shown["verdict"] = found.verdict(1) if found else text.MISSING
        diverged = results.diverged(cell)
        way = f"{cell[1]} ({diverged} diverged)" if diverged else cell[1]
        rows.append([way, *(shown[name] for name in HEADERS)])
    return Table(CAPTION, ["way", *HEADERS], rows)


def _settings(results: Results, finished: dict[str, Runs]) -> Table:
    sweep = results.sweep
    run = next(iter(finished.values()), [{}])[0]
    rows = [
        ["mapping", sweep.mapping],
        ["model", sweep.model],
        ["zeros asked, in %", f"{100 * sweep.target_zeros:g}"],
        ["set on a sample of", sweep.texts],
        ["measured on", sweep.pairs],
        ["texts", text.number(run.get("texts"), "{:,}")],
        ["pairs", text.number(run.get("rows"), "{:,}")],
        ["steps", f"{sweep.steps:,}"],
        ["batch size", str(sweep.batch_size)],
        ["learning rate", text.plain(sweep.learning_rate)],
        ["resamples", f"{bootstrap.RESAMPLES:,}"],
        ["seeds", str(sweep.seeds)],
    ]
    return Table(SETTINGS, ["setting", "value"], rows)


def _plot(finished: dict[str, Runs], sparse: dict[str, Runs]) -> Figure:
    figure, axes = canvas.single(4.2)
    softmax = next(iter(sparse.values()))[0]["softmax"]
    axes.axhline(softmax, color="black", lw=1.2, ls="--")
    if CONTINUED in finished:
        axes.axhline(_mean(finished[CONTINUED], "Spearman"), color=canvas.GREY, lw=1.2, ls=":")
    for way, look in canvas.looks(list(sparse), None).items():
        found = difference(sparse[way])
        assert found.interval is not None
        axes.errorbar(
            [_mean(sparse[way], "zeros")],
            [softmax + found.value],
            yerr=[[abs(found.value - end)] for end in found.interval],
            **{**look, "linestyle": "none"},
            label=way,
            elinewidth=1,
        )
    axes.set(xlabel="exact zeros in %", ylabel="Spearman x 100")
    canvas.legend_below(figure, axes)
    return figure


def _layers(finished: dict[str, Runs]) -> Table:
    """Return a table with the zeros of every layer on the pairs, for the first seed."""
    rows = [
        [way, *(f"{100 * share:.1f}" for share in runs[0]["layers"])]
        for way, runs in finished.items()
    ]
    layers = range(1, len(rows[0]))
    return Table("Share of exact zeros in %, by layer.", ["way", *map(str, layers)], rows)

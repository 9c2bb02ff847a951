"""The report: tables, and figures like 2 and 3 of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bottleneck.config import task
from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import canvas, text
from sparse_attn.reports.page import Block, Heading, Page, Plot, Status, Table
from sparse_attn.reports.seed_statistics import Estimate, estimate
from sparse_attn.reports.verdicts import Measured, verdict_tables

BASELINE = "softmax"
FLOOR = {"color": canvas.GREY, "linestyle": "--", "linewidth": 1.6}


@dataclass(frozen=True)
class Measure:
    """A key of the results and how to format it."""

    key: str
    title: str
    label: str
    unit: str
    digits: int
    caption: str
    better: int = -1

    def of(self, run: dict[str, Any]) -> float:
        return run[self.key]


KL = Measure(
    "kl",
    "Mean KL",
    "mean KL in nats",
    "nats",
    3,
    "Mean over contexts of KL(P* || Q) in nats; lower is better.",
)
MEASURES = (
    Measure(
        "mode_matching",
        "Mode matching",
        "mode matching in %",
        "points",
        1,
        "Share of contexts whose most probable word is that of the target, in %; higher is better.",
        better=1,
    ),
    KL,
    Measure(
        "log_error",
        "Error of the log-matrix",
        "squared error of log P",
        "nats^2",
        1,
        "||log P* - log Q||_F^2 / (N M) in nats^2 per entry. The floor, sum over i >= D + 2 of "
        "sigma_i^2 / (N M) with the singular values of log P* (Eckart-Young), binds linear softmax "
        "alone, and this error alone: KL has no such floor. Training minimises cross entropy, "
        "which hardly sees the small entries that this error is made of.",
    ),
)


def make_page(results: Results) -> Page:
    """The report of a sweep."""
    blocks: list[Block] = [
        *head_verdicts(results),
        Heading("Settings"),
        _settings(results),
        results.standing,
        *map(Status, results.left_out),
    ]
    overview = []
    for alpha in results.sweep.alphas:
        blocks.append(Heading(f"alpha = {alpha:g}"))
        for measure in MEASURES:
            blocks.append(Heading(measure.title, 3))
            figure = plot(results, alpha, measure)
            if figure is not None:
                name = f"{measure.key.replace('_', '-')}-alpha{alpha:g}"
                blocks.append(Plot(name, f"{measure.title} by dimension", "", figure))
            blocks.append(measure_table(results, alpha, measure))
        blocks += [
            _table(results, alpha, "Learning rates chosen.", partial(_rates, results)),
            _table(results, alpha, "Seconds a run, mean.", partial(_seconds, results)),
        ]
        caption = f"Mean KL in nats, alpha = {alpha:g}; lower is better."
        overview.append(replace(measure_table(results, alpha, KL), caption=caption))
    return Page("The softmax bottleneck on Dirichlet targets", blocks, overview)


def head_verdicts(results: Results) -> list[Table]:
    """Return the verdicts of all differences from softmax, ordered by measure."""
    found = [
        Measured(
            measure.title,
            measure.unit,
            f"{{:.{measure.digits}f}}",
            measure.better,
            results.against(BASELINE, measure.of),
        )
        for measure in MEASURES
    ]
    return verdict_tables(found, BASELINE)


def _settings(results: Results) -> Table:
    sweep = results.sweep
    rates = ", ".join(f"{rate:g}" for rate in sorted(sweep.learning_rates))
    rows = [
        ["targets N", f"{sweep.contexts:,}"],
        ["steps", f"{sweep.steps:,}"],
        ["contexts a step", str(sweep.batch)],
        ["seeds", str(sweep.seeds)],
        ["learning rates tried", rates],
        *(
            [head, ", ".join(f"{name} {value}" for name, value in options.items()) or text.NOTHING]
            for head, options in sweep.heads.items()
        ),
    ]
    caption = (
        "Below, a cell is the mean ± standard deviation over seeds, at the learning rate that is "
        "best on targets of another seed."
    )
    return Table(caption, ["setting", "value"], rows)


def measure_table(results: Results, alpha: float, measure: Measure) -> Table:
    """Return one measure for every head; the log-matrix error includes the floor of softmax."""

    def show(cell: Cell) -> str:
        spread = results.spread(cell, measure.of)
        diverged = results.diverged(cell)
        found = [
            spread.text(f"{{:.{measure.digits}f}}") if spread else "",
            f"({diverged} diverged)" if diverged else "",
        ]
        return " ".join(filter(None, found)) or "not run"

    return _table(results, alpha, measure.caption, show, floor=measure.key == "log_error")


def _table(
    results: Results, alpha: float, caption: str, show: Callable[[Cell], str], floor: bool = False
) -> Table:
    """A row per finished vocabulary and dimension, a column per head and the floor."""
    rows = []
    for vocabulary in results.sweep.vocabularies:
        for dimension in results.sweep.dimensions:
            cells = [(task(alpha, vocabulary, dimension), head) for head in results.mappings]
            if any(map(results.counting, cells)):
                lowest = _floor(results, cells[0][0]) if floor else None
                ends = [f"{lowest.mean:.1f}" if lowest else ""] if floor else []
                rows.append([f"{vocabulary:,}", str(dimension), *map(show, cells), *ends])
    ends = ["floor of softmax"] if floor else []
    return Table(caption, ["M", "D", *results.mappings, *ends], rows)


def _rates(results: Results, cell: Cell) -> str:
    rates = sorted({record.config["learning_rate"] for record in results.counting(cell)})
    return ", ".join(f"{rate:g}" for rate in rates) or "not run"


def _seconds(results: Results, cell: Cell) -> str:
    spread = results.spread(cell, lambda run: run["seconds"])
    return f"{spread.mean:.1f}" if spread else "not run"


def _floor(results: Results, task: str) -> Estimate | None:
    """Return the floor of the log-matrix error over seeds, which is the same for all heads."""
    found: dict[int, float] = {}
    for head in results.mappings:
        found |= results.by_seed((task, head), lambda run: run["floor"])
    return estimate(found.values())


def plot(results: Results, alpha: float, measure: Measure) -> Figure | None:
    """Plot a measure by dimension, one panel per vocabulary; None without finished final runs.

    Lines: means over seeds; bands: one standard deviation to each side. The log-matrix error
    includes the Eckart-Young floor of linear softmax.
    """
    sweep = results.sweep
    shown = {}
    for vocabulary in sweep.vocabularies:
        tasks = {dimension: task(alpha, vocabulary, dimension) for dimension in sweep.dimensions}
        if any(results.finished(cell) for cell in product(tasks.values(), results.mappings)):
            shown[vocabulary] = tasks
    if not shown:
        return None
    figure, panels = canvas.panels([f"M = {vocabulary:,}" for vocabulary in shown], 3.2)
    for axes, tasks in zip(panels, shown.values(), strict=True):
        for head, look in canvas.looks(results.mappings, "softmax").items():
            spreads = {d: results.spread((name, head), measure.of) for d, name in tasks.items()}
            _draw(axes, spreads, {**look, "label": head, "markersize": 4.5})
        if measure.key == "log_error":
            floors = {d: _floor(results, name) for d, name in tasks.items()}
            _draw(axes, floors, {**FLOOR, "label": "floor of softmax"})
        axes.set_xscale("log")
        axes.set_xticks(sweep.dimensions, [str(dimension) for dimension in sweep.dimensions])
        axes.minorticks_off()
        axes.set(xlabel="dimension D", ylabel=measure.label)
    canvas.legend_below(figure, panels[0])
    return figure


def _draw(axes: Axes, spreads: dict[int, Estimate | None], look: dict[str, Any]) -> None:
    """Draw a line and its band by dimension."""
    known = {dimension: spread for dimension, spread in spreads.items() if spread}
    axes.plot(list(known), [spread.mean for spread in known.values()], **look)
    low = [spread.mean - (spread.sd or 0) for spread in known.values()]
    high = [spread.mean + (spread.sd or 0) for spread in known.values()]
    axes.fill_between(list(known), low, high, color=look["color"], alpha=0.18, linewidth=0)

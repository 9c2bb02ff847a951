"""The report: measures of the heads, and figures like 2 and 3 of the paper."""

from __future__ import annotations

from itertools import product
from operator import itemgetter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bottleneck.config import task
from sparse_attn.engine.sweep.report import Column, mean_of, report
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import canvas, text
from sparse_attn.reports.measures import Measure
from sparse_attn.reports.page import Page, Plot
from sparse_attn.reports.seed_statistics import Estimate, estimate

BASELINE = "softmax"
FLOOR = {"color": canvas.GREY, "linestyle": "--", "linewidth": 1.6}
MODES = Measure(
    "Mode matching in %",
    itemgetter("mode_matching"),
    pattern="{:.1f}",
    note="Share of contexts whose most probable word is that of the target.",
)
KL = Measure(
    "Mean KL in nats",
    itemgetter("kl"),
    -1,
    "{:.3f}",
    "nats",
    note="Mean over contexts of KL(P* || Q).",
)
LOG_ERROR = Measure(
    "Error of the log-matrix in nats^2",
    itemgetter("log_error"),
    -1,
    "{:.1f}",
    "nats^2",
    note="||log P* - log Q||_F^2 / (N M), per entry.",
)
MEASURES = (MODES, KL, LOG_ERROR)
FLOOR_NOTE = (
    "Floor: sum over i >= D + 2 of sigma_i^2 / (N M) with the singular values of log P* "
    "(Eckart-Young). It binds the error of the log-matrix of linear softmax; KL has no such floor. "
    "Training minimises cross entropy, which hardly weighs the small entries of that error."
)


def make_page(results: Results) -> Page:
    """Return the report of a sweep."""
    figures = []
    for alpha in results.sweep.alphas:
        if figure := plot(results, alpha):
            name, title = f"measures-alpha{alpha:g}", f"alpha = {alpha:g}: measures by dimension"
            caption = "Means over seeds; bands: one standard deviation to each side."
            figures.append(Plot(name, title, caption, figure))
    return report(
        results,
        MEASURES,
        title="The softmax bottleneck on Dirichlet targets",
        seeds=results.sweep.seeds,
        setup=_setup(results),
        setting=lambda record: f"lr {record.config['learning_rate']:g}",
        columns=[
            Column("seconds", "Seconds", mean_of(results, itemgetter("seconds")), "{:.1f}"),
            Column("floor", "Floor", mean_of(results, itemgetter("floor")), "{:.1f}"),
        ],
        figures=figures,
        notes=[FLOOR_NOTE],
    )


def _setup(results: Results) -> list[list[str]]:
    sweep = results.sweep
    return [
        ["targets N", f"{sweep.contexts:,}"],
        ["steps", f"{sweep.steps:,}"],
        ["contexts a step", str(sweep.batch)],
        ["seeds", str(sweep.seeds)],
        ["learning rates tried", ", ".join(f"{rate:g}" for rate in sorted(sweep.learning_rates))],
        *(
            [head, ", ".join(f"{name} {value}" for name, value in options.items()) or text.NOTHING]
            for head, options in sweep.heads.items()
        ),
    ]


def _floor(results: Results, task: str) -> Estimate | None:
    """Return the floor of the log-matrix error over seeds, which is the same for all heads."""
    found: dict[int, float] = {}
    for head in results.mappings:
        found |= results.by_seed((task, head), lambda run: run["floor"])
    return estimate(found.values())


def plot(results: Results, alpha: float) -> Figure | None:
    """Plot every measure by dimension, one panel per measure and vocabulary.

    Lines: means over seeds; bands: one standard deviation to each side. The log-matrix error
    includes the Eckart-Young floor of linear softmax. None without finished final runs.
    """
    sweep = results.sweep
    shown = {}
    for vocabulary in sweep.vocabularies:
        tasks = {dimension: task(alpha, vocabulary, dimension) for dimension in sweep.dimensions}
        if any(results.finished(cell) for cell in product(tasks.values(), results.mappings)):
            shown[f"M = {vocabulary:,}"] = tasks
    if not shown:
        return None
    parts = list(product(MEASURES, shown))
    figure, panels = canvas.panels([title for _, title in parts], 3.2, columns=len(shown))
    for axes, (measure, title) in zip(panels, parts, strict=True):
        tasks = shown[title]
        for head, look in canvas.looks(results.mappings, BASELINE).items():
            spreads = {d: results.spread((name, head), measure.value) for d, name in tasks.items()}
            _draw(axes, spreads, {**look, "label": head, "markersize": 4.5})
        if measure is LOG_ERROR:
            floors = {d: _floor(results, name) for d, name in tasks.items()}
            _draw(axes, floors, {**FLOOR, "label": "floor of softmax"})
        axes.set_xscale("log")
        axes.set_xticks(sweep.dimensions, [str(dimension) for dimension in sweep.dimensions])
        axes.minorticks_off()
        axes.set(xlabel="dimension D", ylabel=measure.name)
    canvas.legend_below(figure, panels[-1])
    return figure


def _draw(axes: Axes, spreads: dict[int, Estimate | None], look: dict[str, Any]) -> None:
    """Draw a line and its band by dimension."""
    known = {dimension: spread for dimension, spread in spreads.items() if spread}
    axes.plot(list(known), [spread.mean for spread in known.values()], **look)
    low = [spread.mean - (spread.sd or 0) for spread in known.values()]
    high = [spread.mean + (spread.sd or 0) for spread in known.values()]
    axes.fill_between(list(known), low, high, color=look["color"], alpha=0.18, linewidth=0)

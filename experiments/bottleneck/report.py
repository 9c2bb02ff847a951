"""`python -m experiments.bottleneck report`: a page of tables, and the figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.bottleneck.config import ReportConfig
from experiments.bottleneck.plots import plot
from experiments.bottleneck.records import Results, read_records
from pipeline.files import write_text
from pipeline.report import canvas, text
from pipeline.report.table import Report, Table


@dataclass(frozen=True)
class Measure:
    """A key of the records, and how it is shown."""

    key: str
    title: str
    label: str
    digits: int
    caption: str


MEASURES = (
    Measure(
        "mode_matching",
        "Mode matching",
        "mode matching in %",
        1,
        "Share of contexts whose most probable word is that of the target, in %; higher is better.",
    ),
    Measure(
        "kl",
        "Mean KL",
        "mean KL in nats",
        3,
        "Mean over contexts of KL(P* || Q) in nats; lower is better.",
    ),
    Measure(
        "log_error",
        "Error of the log-matrix",
        "squared error of log P",
        1,
        "||log P* - log Q||_F^2 / (N M) in nats^2 per entry. The floor, sum over i >= D + 2 of "
        "sigma_i^2 / (N M) with the singular values of log P* (Eckart-Young), binds linear softmax "
        "alone, and this error alone: KL has no such floor. Training minimises cross entropy, "
        "which hardly sees the small entries that this error is made of.",
    ),
)


KL = MEASURES[1]


def report(config: ReportConfig) -> Report:
    """Write report.md and the figures; the same records give the same bytes.

    Raises:
        ValueError: as `read_records`.
    """
    results = read_records(config.records_dir)
    folder = Path(config.output_dir or config.records_dir)
    folder.mkdir(parents=True, exist_ok=True)
    parts, short = [_head(results)], []
    for alpha in results.values("alpha"):
        parts.append(f"## alpha = {alpha:g}")
        for measure in MEASURES:
            name = f"{measure.key.replace('_', '-')}-alpha{alpha:g}.png"
            figure = plot(results, alpha, measure.key, measure.label)
            canvas.save(figure, folder / name)
            table = measure_table(results, alpha, measure)
            image = f"![{measure.title} by dimension]({name})"
            parts += [f"### {measure.title}", measure.caption, image, table]
        title = f"Mean KL in nats, alpha = {alpha:g}; lower is better."
        short.append(_table(results, alpha, _spread_of(results, KL), caption=title))
        rates = _table(results, alpha, _rate_of(results))
        seconds = _table(results, alpha, _seconds_of(results))
        parts += ["### Learning rates chosen", _markdown(rates)]
        parts += ["### Seconds a run, mean", _markdown(seconds)]
    page = folder / "report.md"
    write_text(page, "\n\n".join(parts) + "\n")
    return Report(page, short)


def measure_table(results: Results, alpha: float, measure: Measure) -> str:
    """A measure of every head, and for the error of the log-matrix softmax's floor."""
    spread = _spread_of(results, measure)
    return _markdown(_table(results, alpha, spread, floor=measure.key == "log_error"))


def _head(results: Results) -> str:
    config = results.records[0]["config"]
    runs = ", ".join(f"{number} {status}" for status, number in sorted(results.count().items()))
    devices = ", ".join(sorted({record["device"] for record in results.records}))
    seeds = len({record["config"]["seed"] for record in results.final()})
    options = {r["config"]["head"]: r["config"]["options"] for r in results.records}
    heads = ", ".join(
        f"{head} ({', '.join(f'{name} {value}' for name, value in options[head].items())})"
        if options[head]
        else head
        for head in results.heads
    )
    rates = ", ".join(f"{rate:g}" for rate in results.values("learning_rate"))
    words = (
        f"N = {config['contexts']:,} targets, {config['steps']:,} steps of {config['batch']} "
        f"contexts; {seeds} seeds, mean ± standard deviation over them; the learning rate of each "
        f"cell is the best of {rates} on targets of another seed. Heads: {heads}. Runs, searches "
        f"of the learning rate included: {runs}. Device: {devices}."
    )
    return f"# The softmax bottleneck on Dirichlet targets\n\n{text.markdown(words)}"


def _table(
    results: Results,
    alpha: float,
    show: Callable[[dict[str, Any]], str],
    floor: bool = False,
    caption: str = "",
) -> Table:
    """Cells that have run down, heads across, the floor in the last column."""
    rows = []
    for vocabulary in results.values("vocabulary"):
        for dimension in results.values("dimension"):
            cell = {"alpha": alpha, "vocabulary": vocabulary, "dimension": dimension}
            if not results.final(**cell):
                continue
            shown = [show({**cell, "head": head}) for head in results.heads]
            if floor:
                lowest = results.spread("floor", **cell)
                shown.append(f"{lowest.mean:.1f}" if lowest else "")
            rows.append([f"{vocabulary:,}", str(dimension), *shown])
    headers = ["M", "D", *results.heads, *(["floor of softmax"] if floor else [])]
    return Table(caption, headers, rows)


def _markdown(table: Table) -> str:
    """Numbers to the right, and no caption."""
    lines = [table.headers, ["---:"] * len(table.headers), *table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread_of(results: Results, measure: Measure) -> Callable[[dict[str, Any]], str]:
    def show(cell: dict[str, Any]) -> str:
        spread = results.spread(measure.key, **cell)
        diverged = sum(record["status"] == "diverged" for record in results.final(**cell))
        note = f" ({diverged} diverged)" if diverged else ""
        if spread is None:
            return note.strip() or "not run"
        return spread.text(f"{{:.{measure.digits}f}}") + note

    return show


def _rate_of(results: Results) -> Callable[[dict[str, Any]], str]:
    def show(cell: dict[str, Any]) -> str:
        rates = sorted({record["config"]["learning_rate"] for record in results.final(**cell)})
        return ", ".join(f"{rate:g}" for rate in rates) or "not run"

    return show


def _seconds_of(results: Results) -> Callable[[dict[str, Any]], str]:
    def show(cell: dict[str, Any]) -> str:
        spread = results.spread("seconds", **cell)
        return f"{spread.mean:.1f}" if spread else "not run"

    return show

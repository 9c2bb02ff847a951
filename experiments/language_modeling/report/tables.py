"""Tables of the heads of an experiment, and of our results with the published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from experiments.language_modeling.report.runs import (
    baseline,
    cells_of,
    config_of,
    described,
    measured,
    values,
)
from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.results import Results, ended
from sparse_attn.reports import text
from sparse_attn.reports.measures import HEADERS, Measure, Row, compare_cells
from sparse_attn.reports.table import Table

# formats of measures; two decimals by default
_PATTERNS = {
    "rank.rank": "{:,.0f}",
    "rank.float64.rank": "{:,.0f}",
    "parameters": "{:,.0f}",
    "epochs": "{:,.0f}",
    "seconds": "{:,.0f}",
    "epoch_seconds": "{:,.0f}",
    "top_10_error": "{:.4f}",
    "simlex.rho": "{:.3f}",
}
_STATUS = {"Runs": "finished", "Diverged": "diverged", "Unfinished": "failed"}
TEST = Measure("Test perplexity", measured("test_perplexity"), -1, "{:,.2f}", "perplexity")
_SLOPES = ("mean", "std", "min", "max")
_LAST = {
    "Top-10 error": "top_10_error",
    "SimLex": "simlex.rho",
    "Parameters": "parameters",
    "Seconds": "seconds",
}


def head_rows(results: Results, task: str) -> list[Row]:
    """Compare the test perplexity of every head with softmax of the same settings."""
    cells = cells_of(results, task)
    bases = {cell: base for cell in cells if (base := baseline(results, cell))}
    return compare_cells(TEST, {cell: results.runs(cell) for cell in cells}, bases)


def heads_table(results: Results, task: str) -> Table:
    """One row per head: perplexity, difference from softmax and further measures."""
    cells = cells_of(results, task)
    columns: dict[str, list[str]] = {"Head": [label for _, label in cells]}
    for header, status in _STATUS.items():
        columns[header] = [str(ended(results.counting(cell))[status]) for cell in cells]
    for header, measure in (("Valid", "valid_perplexity"), ("Test", "test_perplexity")):
        columns[header] = [shown(results, cell, measure) for cell in cells]
    rows = [row.cells()[2:] for row in head_rows(results, task)]
    columns |= dict(zip(HEADERS[2:], map(list, zip(*rows, strict=True)), strict=True))
    if any(values(results, cell, "dynamic.test_perplexity") for cell in cells):
        columns["Test, dynamic"] = [
            shown(results, cell, "dynamic.test_perplexity") for cell in cells
        ]
    columns["Rank (d + 1, d + 2)"] = [_rank(results, cell) for cell in cells]
    if any(values(results, cell, "rank.float64.rank") for cell in cells):
        columns["Rank in float64 (contexts)"] = [_exact_rank(results, cell) for cell in cells]
    for header, measure in _LAST.items():
        columns[header] = [shown(results, cell, measure) for cell in cells]
    lines = [list(line) for line in zip(*columns.values(), strict=True)]
    return Table("Mean ± sd over seeds; Valid and Test are perplexities.", list(columns), lines)


def slopes_table(results: Results, task: str) -> Table | None:
    """Slopes of the piecewise linear functions; None without one."""
    rows = [
        [cell[1], *(shown(results, cell, f"slopes.{name}") for name in _SLOPES)]
        for cell in cells_of(results, task)
        if values(results, cell, "slopes.mean")
    ]
    headers = ["Head", *(name.capitalize() for name in _SLOPES)]
    return Table("Slopes of the learned function (PLIF).", headers, rows) if rows else None


def rates_table(results: Results, task: str) -> Table | None:
    """Result of each learning rate of a sweep; None if none was chosen."""
    rows = []
    for cell in results.cells:
        trials = results.of_stage(cell, "trial") if cell[0] == task else []
        tried = [
            f"{trial.config['train']['learning_rate']:g}: "
            + (f"{trial.results['valid_perplexity']:.2f}" if trial.results else trial.status)
            for trial in trials
        ]
        chosen = {run.config["train"]["learning_rate"] for run in results.counting(cell)}
        if tried:
            rate = ", ".join(f"{rate:g}" for rate in chosen) or text.MISSING
            rows.append([cell[1], "; ".join(tried), rate])
    caption = "Validation perplexity of every learning rate tried, and the one chosen."
    return Table(caption, ["Head", "Tried", "Chosen"], rows) if rows else None


def published_tables() -> list[dict[str, Any]]:
    """The papers' tables, as `published.yaml` explains them."""
    file = Path(__file__).with_name("published.yaml")
    tables: list[dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return tables


def published_table(table: dict[str, Any], results: Results) -> Table:
    """Return the published numbers with ours, and the config that trains each row."""
    columns = table["columns"]
    headers = ["Model"]
    for header, measure in columns.items():
        headers += [header, "ours"] if measure else [header]
    rows = []
    for row in table["rows"]:
        cells = our_cells(table, row, results)
        line = [row["model"]]
        for measure, printed in zip(columns.values(), row["published"], strict=True):
            line.append(printed)
            if measure:
                ours = "; ".join(shown(results, cell, measure) for cell in cells)
                line.append(ours or text.NOTHING)
        told = "; ".join(_length(results, cell) for cell in cells)
        rows.append([*line, told or "not run here", row.get("config", "none")])
    return Table(table["setup"], [*headers, "Our runs", "Config"], rows)


def our_cells(table: dict[str, Any], row: dict[str, Any], results: Results) -> list[Cell]:
    """Return our cells with the network and head of a published row, and one of its measures."""
    measures = [measure for measure in table["columns"].values() if measure]
    return [
        cell
        for cell in results.cells
        if results.finished(cell)
        and described(config_of(results, cell)) == row.get("run")
        and any(values(results, cell, measure) for measure in measures)
    ]


def shown(results: Results, cell: Cell, measure: str) -> str:
    """Return mean ± sd, or one number if there is one seed or all agree."""
    return results.text(cell, measured(measure), _PATTERNS.get(measure, "{:,.2f}"))


def _rank(results: Results, cell: Cell) -> str:
    """Return the rank, with its bounds for softmax without and with a bias."""
    sizes = values(results, cell, "rank.d")
    if not sizes:
        return text.MISSING
    d = round(next(iter(sizes.values())))
    return f"{shown(results, cell, 'rank.rank')} ({d + 1:,}, {d + 2:,})"


def _exact_rank(results: Results, cell: Cell) -> str:
    """Return the rank of log-probabilities in float64, and the number of contexts."""
    contexts = values(results, cell, "rank.float64.contexts")
    if not contexts:
        return text.MISSING
    return f"{shown(results, cell, 'rank.float64.rank')} ({next(iter(contexts.values())):,.0f})"


def _length(results: Results, cell: Cell) -> str:
    """Return the number and length of our runs."""
    seeds = text.counted(len(results.finished(cell)), "seed")
    return f"{seeds}, {shown(results, cell, 'epochs')} epochs"

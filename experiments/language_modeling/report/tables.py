"""Records as rows of text: the heads of an experiment, and ours beside the published."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.language_modeling.report.published import PublishedTable
from experiments.language_modeling.report.runs import Cell, baseline
from pipeline.report import text
from pipeline.report.table import Table

# how a measure is printed; all others with two decimals
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
_SLOPES = ("mean", "std", "min", "max")


def heads_table(cells: Sequence[Cell]) -> Table:
    """One row a head: perplexity, difference to softmax, and what else was measured."""
    dynamic = any(cell.values("dynamic.test_perplexity") for cell in cells)
    exact = any(cell.values("rank.float64.rank") for cell in cells)
    headers = ["Head", "Runs", "Diverged", "Unfinished", "Valid", "Test"]
    headers += ["Test - softmax", "95 % interval (pairs)"]
    headers += ["Test, dynamic"] if dynamic else []
    headers += ["Rank (d + 1, d + 2)"] + (["Rank in float64 (contexts)"] if exact else [])
    headers += ["Top-10 error", "SimLex", "Parameters", "Seconds"]
    rows = []
    for cell in cells:
        row = [cell.label, *_counts(cell)]
        row += [shown(cell, "valid_perplexity"), shown(cell, "test_perplexity")]
        row += _difference(cell, cells)
        row += [shown(cell, "dynamic.test_perplexity")] if dynamic else []
        row += [_rank(cell)] + ([_exact_rank(cell)] if exact else [])
        row += [shown(cell, "top_10_error"), shown(cell, "simlex.rho")]
        rows.append([*row, shown(cell, "parameters"), shown(cell, "seconds")])
    return Table("Mean ± sd over seeds; Valid and Test are perplexities.", headers, rows)


def slopes_table(cells: Sequence[Cell]) -> Table | None:
    """Slopes of the piecewise linear functions; None where there is none."""
    rows = [
        [cell.label, *(shown(cell, f"slopes.{name}") for name in _SLOPES)]
        for cell in cells
        if cell.values("slopes.mean")
    ]
    headers = ["Head", *(name.capitalize() for name in _SLOPES)]
    return Table("Slopes of the learned function (PLIF).", headers, rows) if rows else None


def published_table(table: PublishedTable, experiments: dict[str, list[Cell]]) -> Table:
    """The published numbers, ours beside each, and the config that runs the row."""
    headers = ["Model"]
    for header, measure in table.columns.items():
        headers += [header, "ours"] if measure else [header]
    rows = []
    for row in table.rows:
        measures = [measure for measure in table.columns.values() if measure]
        matches = [
            (cell, differing)
            for cell, differing in row.matches(experiments)
            if any(map(cell.values, measures))
        ]
        line = [row.model]
        for measure, printed in zip(table.columns.values(), row.published, strict=True):
            line.append(printed)
            if measure:
                ours = "; ".join(shown(cell, measure) for cell, _ in matches)
                line.append(ours or text.NOTHING)
        told = "; ".join(_told(cell, differing) for cell, differing in matches) or "not run here"
        rows.append([*line, told, row.command()])
    return Table(table.setup, [*headers, "Our runs", "Config"], rows)


def shown(cell: Cell, measure: str) -> str:
    """mean ± sd, or one number where seeds do not differ in it or there is one."""
    found = cell.estimate(measure)
    return text.MISSING if found is None else found.text(_PATTERNS.get(measure, "{:,.2f}"))


def _counts(cell: Cell) -> list[str]:
    finished = len(cell.finished)
    diverged = sum(run.record["status"] == "diverged" for run in cell.runs)
    return [str(finished), str(diverged), str(len(cell.runs) - finished - diverged)]


def _difference(cell: Cell, cells: Sequence[Cell]) -> list[str]:
    base = baseline(cell, cells)
    if base is cell:
        return [text.NOTHING] * 2
    found = base and cell.difference(base, "test_perplexity")
    if not found:
        return [text.MISSING] * 2
    # what rounds to nothing has no sign
    value = f"{found.value + 0.0:+.2f}"
    if found.interval is None:
        return [value, "one pair"]
    low, high = found.interval
    return [value, f"[{low:+.2f}, {high:+.2f}] ({found.n})"]


def _rank(cell: Cell) -> str:
    """The rank beside the two numbers that softmax cannot exceed without and with a bias."""
    sizes = cell.values("rank.d")
    if not sizes:
        return text.MISSING
    d = round(next(iter(sizes.values())))
    return f"{shown(cell, 'rank.rank')} ({d + 1:,}, {d + 2:,})"


def _exact_rank(cell: Cell) -> str:
    """The rank of log-probabilities worked out in float64, and of how many contexts."""
    contexts = cell.values("rank.float64.contexts")
    if not contexts:
        return text.MISSING
    return f"{shown(cell, 'rank.float64.rank')} ({next(iter(contexts.values())):,.0f})"


def _told(cell: Cell, differing: Sequence[str]) -> str:
    """How many of our runs, how long, and in what they are not what the paper ran."""
    told = [text.counted(len(cell.finished), "seed"), f"{shown(cell, 'epochs')} epochs"]
    told += ["finetuned"] if cell.config["finetune"] else []
    return ", ".join([*told, *(f"{key} {cell.setting(key)}" for key in differing)])

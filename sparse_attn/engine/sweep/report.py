"""The report of a sweep: setup, tables with intervals, the forest of differences, its runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.records import Record
from sparse_attn.engine.sweep.results import Results, ended
from sparse_attn.reports import text
from sparse_attn.reports.measures import (
    Measure,
    Row,
    compare_cells,
    differences_table,
    forest_of,
    means_table,
)
from sparse_attn.reports.page import Block, Bullets, Heading, Page, Plot, Status, Table

NOTES = (
    "Runs: final runs that finished. Failed and diverged: of all stages. Means are over the runs "
    "that finished, which flatters a mapping whose other runs diverged.",
    "sd: over seeds, with n - 1. Differences: over the seeds that both have.",
    "Holm p: corrected for the number of differences in the table (Holm 1979). Verdict: better or "
    "worse if it is below 0.05 and the interval excludes 0. One pair of runs is not judged. Not "
    "significant is no proof of equality.",
    "Detectable: the true difference that one paired t-test at 5 %, uncorrected, has 80 % power "
    "to detect.",
)
T_INTERVAL = "Interval and p: paired t-test over seeds."


class Column(NamedTuple):
    """A further number or text of each cell, such as a cost.

    Attributes:
        key: header in report.csv.
        title: header in the page.
        value: returns it for a cell; None if unknown.
        pattern: its format in the page.
    """

    key: str
    title: str
    value: Callable[[Cell], Any]
    pattern: str = "{}"

    def text(self, cell: Cell) -> str:
        """Format the value for the page."""
        value = self.value(cell)
        return text.MISSING if value is None else self.pattern.format(value)


def report(
    results: Results,
    measures: Sequence[Measure],
    *,
    title: str,
    seeds: int,
    setup: Sequence[Sequence[str]],
    setting: Callable[[Record], str],
    baseline: str | None = "softmax",
    columns: Sequence[Column] = (),
    tables: Sequence[Table] = (),
    figures: Sequence[Plot] = (),
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Page:
    """Return the report of a sweep, finished or not.

    Args:
        results: runs of the sweep.
        measures: measures to compare the mappings by; the forest plot has the first.
        title: title of the page.
        seeds: number of final runs planned for each cell.
        setup: rows of setting and value.
        setting: names the setting of a final run, such as its learning rate.
        baseline: mapping to compare with; None for a sweep without one.
        columns: further numbers of each cell.
        tables, figures: of this study.
        notes: explanations at the end.
        warnings: what to know before the numbers.
    """
    runs = {cell: results.runs(cell) for cell in results.cells}
    bases = {} if baseline is None else {cell: (cell[0], baseline) for cell in results.cells}
    found = [compare_cells(measure, runs, bases) for measure in measures]
    base = baseline or "no baseline"
    counts = _counts(results, seeds)
    costs = [Column("settings", "Setting", lambda cell: chosen(results, cell, setting)), *columns]
    compared = [differences_table(rows, base, counts) for rows in found]
    several = len(results.tasks) > 1
    blocks: list[Block] = [_status(results), *map(Status, warnings), *_forest(found[0], base)]
    for measure, rows, table in zip(measures, found, compared, strict=True):
        means = [means_table(rows)] if several else []
        blocks += [Heading(measure.name), *means, table]
    blocks += [Heading("Settings and costs"), _columns_table(results, costs)]
    if tables or figures:
        blocks += [Heading("Further results"), *figures, *tables]
    blocks += [Heading("Setup"), _setup(results, setup)]
    explained = [*notes, *([] if measures[0].compare else [T_INTERVAL]), *NOTES]
    blocks += [Heading("How to read the numbers"), Bullets(explained), *_unfinished(results)]
    shown = means_table(found[0]) if several else _short(compared[0])
    content = _csv(results, [row for rows in found for row in rows], costs)
    return Page(title, blocks, [shown], {"report.csv": content})


def chosen(results: Results, cell: Cell, setting: Callable[[Record], str]) -> str:
    """Name the setting of a cell's final runs; several with the seeds of each."""
    found: dict[str, list[int]] = {}
    for seed, record in results.scored(cell).items():
        found.setdefault(setting(record), []).append(seed)
    if len(found) == 1:
        return next(iter(found))
    parts = (f"{name} (seed {', '.join(map(str, seeds))})" for name, seeds in found.items())
    return "; ".join(parts) or text.MISSING


def mean_of(results: Results, value: Callable[[dict[str, Any]], float | None]) -> Any:
    """Return a function that gives the mean of a value over a cell's final runs."""

    def mean(cell: Cell) -> float | None:
        spread = results.spread(cell, value)
        return None if spread is None else spread.mean

    return mean


def _status(results: Results) -> Block:
    """Count the runs; highlighted while some are missing."""
    count, there = ended(results.records), len(results.records)
    line = f"Runs: {there} of {results.expected}. Failed: {count['failed']}. "
    line += f"Diverged: {count['diverged']}."
    return Status(f"Incomplete. {line}") if there < results.expected else line


def _forest(rows: Sequence[Row], base: str) -> list[Block]:
    figure = forest_of(rows, base)
    caption = "Mean difference with its 95 % interval. Filled: significant after Holm's correction."
    title = f"{rows[0].measure.name}: difference from {base}"
    return [Plot("differences", title, caption, figure)] if figure else []


def _counts(results: Results, seeds: int) -> dict[str, Callable[[Cell], str]]:
    return {
        "Runs": lambda cell: f"{len(results.scored(cell))} of {seeds}",
        "Failed": lambda cell: str(ended(results.cells[cell])["failed"]),
        "Diverged": lambda cell: str(ended(results.cells[cell])["diverged"]),
    }


def _columns_table(results: Results, columns: Sequence[Column]) -> Table:
    several = len(results.tasks) > 1
    headers = [*["Task"] * several, "Mapping", *(column.title for column in columns)]
    rows = [
        [*[cell[0]] * several, cell[1], *(column.text(cell) for column in columns)]
        for cell in results.cells
    ]
    return Table("Means over the final runs.", headers, rows)


def _setup(results: Results, setup: Sequence[Sequence[str]]) -> Table:
    versions: dict[str, set[str]] = {}
    for record in results.records:
        for package, version in (record.results or {}).get("versions", {}).items():
            versions.setdefault(package, set()).add(version)
    rows = [*map(list, setup), ["device", "; ".join(results.devices) or text.MISSING]]
    rows += [[package, " / ".join(sorted(found))] for package, found in versions.items()]
    return Table("", ["Setting", "Value"], rows)


def _unfinished(results: Results) -> list[Block]:
    """List runs that failed or diverged."""
    rows = [
        [
            *(record.task, record.mapping, f"{record.stage} {record.index}", record.status),
            ((record.error or "").strip() or "no reason given").splitlines()[-1],
        ]
        for record in results.records
        if record.status != "finished"
    ]
    headers = ["Task", "Mapping", "Run", "End", "Error"]
    return [Heading("Runs that failed or diverged"), Table("", headers, rows)] if rows else []


def _short(table: Table) -> Table:
    """Return the columns for the terminal."""
    shown = ("Mapping", "Mean ± sd", "Difference", "95 % interval", "Verdict", "Detectable")
    places = [table.headers.index(header) for header in shown]
    return table.columns(*places, caption=table.caption)


def _csv(results: Results, rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return a line for each task, mapping and measure."""
    lines = []
    for row in rows:
        count = ended(results.cells[row.cell])
        cell = {"task": row.cell[0], "mapping": row.cell[1], "runs": len(row.values)}
        ends = {status: count[status] for status in ("failed", "diverged")}
        further = {column.key: column.value(row.cell) for column in columns}
        lines.append({**cell, **ends, **row.record(), **further})
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]))
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()

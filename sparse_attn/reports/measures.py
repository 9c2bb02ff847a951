"""Measures of runs: values by seed, differences from a baseline, their tables and forest plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from sparse_attn.reports import canvas, text
from sparse_attn.reports.forest import forest
from sparse_attn.reports.seed_statistics import (
    VERDICTS,
    Difference,
    Estimate,
    estimate,
    holm,
    paired,
)
from sparse_attn.reports.table import Table

Cell = tuple[str, str]  # task, mapping
Value = Callable[[dict[str, Any]], float | None]  # None if the run has no value
Runs = Mapping[int, dict[str, Any]]  # results of the finished final runs, by seed

HEADERS = ["Mapping", "Mean ± sd", "Difference", "95 % interval", "p", "Holm p", "Verdict"]
HEADERS += ["Detectable"]


def by_seed(value: Value, runs: Runs) -> dict[int, float]:
    """Return a value by seed, for the runs that have it."""
    found = {seed: value(results) for seed, results in runs.items()}
    return {seed: float(value) for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class Measure:
    """A number of a run by which mappings are compared.

    Attributes:
        name: name with the unit of the numbers shown, such as "Test error in %".
        value: reads the number from the results of a run.
        better: 1 if more is better, -1 if less is.
        pattern: format of the numbers shown.
        unit: unit of a difference.
        scale: factor from the value to the number shown.
        note: explanation, one sentence.
        compare: difference of the runs of a mapping and those of the baseline; a t interval over
            common seeds by default.
    """

    name: str
    value: Value
    better: int = 1
    pattern: str = "{:.2f}"
    unit: str = "points"
    scale: float = 1
    note: str = ""
    compare: Callable[[Runs, Runs], Difference | None] | None = None

    def values(self, runs: Runs) -> dict[int, float]:
        """Return the value by seed, for the runs that have it."""
        return by_seed(self.value, runs)

    def difference(self, ours: Runs, base: Runs) -> Difference | None:
        """Return the difference over common seeds; None without any."""
        if self.compare is not None:
            return self.compare(ours, base)
        return paired(self.values(ours), self.values(base))


@dataclass(frozen=True)
class Row:
    """A mapping on a task by one measure.

    Attributes:
        values: value by seed.
        compared: whether it is another mapping than the baseline.
        difference: from the baseline; None without common seeds.
        holm: its p after Holm's correction over all rows.
    """

    cell: Cell
    measure: Measure
    values: dict[int, float]
    compared: bool
    difference: Difference | None
    holm: float | None = None

    @property
    def estimate(self) -> Estimate | None:
        """Mean and standard deviation over seeds, of the numbers shown."""
        return estimate(self.measure.scale * value for value in self.values.values())

    @property
    def mean(self) -> str:
        """Format `estimate`."""
        return self.estimate.text(self.measure.pattern) if self.estimate else text.MISSING

    @property
    def verdict(self) -> str:
        """Return one of `VERDICTS`; one pair of runs is not judged."""
        if self.difference is None or self.holm is None:
            return VERDICTS[None]
        return self.difference.verdict(self.measure.better, self.holm)

    @property
    def significant(self) -> bool:
        """Return whether the verdict is better or worse."""
        return self.verdict in (VERDICTS[1], VERDICTS[-1])

    def cells(self) -> list[str]:
        """Return the row of the table: `HEADERS`."""
        label = [self.cell[1], self.mean]
        if not self.compared:
            return [*label, *[text.NOTHING] * 6]
        if self.difference is None:
            return [*label, *[text.MISSING] * 4, self.verdict, text.MISSING]
        found = self.difference.scaled(self.measure.scale)
        signed = self.measure.pattern.replace("{:", "{:+")
        return [
            *label,
            text.rounded(found.value, signed),
            text.interval(found.interval, signed),
            text.probability(found.p),
            text.probability(self.holm),
            self.verdict,
            text.number(found.detectable, self.measure.pattern),
        ]

    def record(self) -> dict[str, Any]:
        """Return the row of report.csv: plain numbers; None becomes an empty field."""
        spread, found = estimate(self.values.values()), self.difference
        return {
            "measure": self.measure.name,
            "mean": fmean(self.values.values()) if self.values else None,
            "sd": spread and spread.sd,
            "difference": found and found.value,
            "low": found and found.interval and found.low,
            "high": found and found.interval and found.high,
            "p": found and found.p,
            "p_holm": self.holm,
            "verdict": self.verdict if self.compared else "",
            "paired_seeds": found.n if found else 0,
            "detectable": found and found.detectable,
            "values": self.values,
        }


def compare_cells(
    measure: Measure, runs: Mapping[Cell, Runs], bases: Mapping[Cell, Cell]
) -> list[Row]:
    """Compare each cell with its baseline; Holm's correction is over all of them.

    Args:
        measure: measure to compare by.
        runs: finished final runs of every cell.
        bases: baseline of the cells that have one.
    """
    rows = []
    for cell, ours in runs.items():
        base = bases.get(cell)
        compared = base != cell
        theirs = runs.get(base, {}) if base is not None and compared else {}
        found = measure.difference(ours, theirs)
        rows.append(Row(cell, measure, measure.values(ours), compared, found))
    corrected = holm([row.difference and row.difference.p for row in rows])
    return [replace(row, holm=p) for row, p in zip(rows, corrected, strict=True)]


def means_table(rows: Sequence[Row]) -> Table:
    """Tabulate means: a row for each task, a column for each mapping."""
    shown: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        task, mapping = row.cell
        shown[task][mapping] = row.mean
    mappings = list(dict.fromkeys(mapping for of_task in shown.values() for mapping in of_task))
    caption = f"{rows[0].measure.note} Mean ± standard deviation over seeds.".strip()
    lines = [
        [task, *(of_task.get(mapping, text.NOTHING) for mapping in mappings)]
        for task, of_task in shown.items()
    ]
    return Table(caption, ["Task", *mappings], lines)


def differences_table(
    rows: Sequence[Row], base: str, further: Mapping[str, Callable[[Cell], str]] | None = None
) -> Table:
    """Tabulate means and differences: a row for each task and mapping.

    Args:
        rows: rows of `compare_cells`.
        base: name of the baseline.
        further: columns after the label, by header.
    """
    several = len({row.cell[0] for row in rows}) > 1
    further = further or {}
    measure = rows[0].measure
    caption = f"{'More' if measure.better > 0 else 'Less'} is better."
    if any(row.difference for row in rows):
        caption += f" Differences from {base} in {measure.unit}."
    if not several:
        caption = f"{measure.note} {caption}".strip()
    headers = [*["Task"] * several, HEADERS[0], *further, *HEADERS[1:]]
    lines = []
    for row in rows:
        label, *numbers = row.cells()
        counts = [count(row.cell) for count in further.values()]
        lines.append([*[row.cell[0]] * several, label, *counts, *numbers])
    return Table(caption, headers, lines)


def forest_of(rows: Sequence[Row], base: str) -> Figure | None:
    """Plot the differences, a panel for each task; None without an interval."""
    found: dict[str, dict[str, Difference]] = defaultdict(dict)
    for row in rows:
        if row.difference:
            found[row.cell[0]][row.cell[1]] = row.difference.scaled(row.measure.scale)
    label = f"{rows[0].measure.unit} above {canvas.name(base)}"
    return forest(found, label, [row.cell for row in rows if row.significant])

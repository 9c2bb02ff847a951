"""Tables that count where mappings are better or worse than a baseline, by several measures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from sparse_attn.reports import text
from sparse_attn.reports.seed_statistics import VERDICTS, Difference
from sparse_attn.reports.table import Table

SHOWN = tuple(VERDICTS[side] for side in (1, -1, 0))
BY_INTERVAL = "Each by its own 95 % t interval, not adjusted for their number."
Cell = tuple[str, str]  # task, mapping


class Measured(NamedTuple):
    """The differences from a baseline by one measure.

    Attributes:
        name: name of the measure.
        unit: unit of the differences, such as points.
        pattern: format of a number, such as "{:.2f}".
        better: 1 if more is better, else -1.
        pairs: difference by cell; None without common seeds.
    """

    name: str
    unit: str
    pattern: str
    better: int
    pairs: Mapping[Cell, Difference | None]

    @property
    def verdicts(self) -> dict[Cell, str]:
        """Return the verdict on every difference with an interval."""
        known = {cell: pair for cell, pair in self.pairs.items() if pair and pair.interval}
        return {cell: pair.verdict(self.better) for cell, pair in known.items()}


def verdict_tables(
    found: Sequence[Measured], base: str, left_out: Collection[str] = ()
) -> list[Table]:
    """Tabulate verdicts by measure (without mappings `left_out`), by mapping, and disagreements."""
    rows = [_totals(one, left_out) for one in found if one.verdicts]
    without = f", without {text.listing(sorted(left_out))}" if left_out else ""
    caption = (
        f"Differences from {base}{without}. {BY_INTERVAL} 80 % power: the true difference that a "
        "paired t-test detects with this power."
    )
    headers = ["measure", "unit", "differences", *SHOWN, "pairs of seeds"]
    by_measure = Table(caption, [*headers, "80 % power, median", "largest"], rows)
    verdicts = {one.name: one.verdicts for one in found}
    tables = by_measure, _by_mapping(verdicts, base), _disagreeing(verdicts)
    return [table for table in tables if table.rows]


def _totals(measured: Measured, left_out: Collection[str]) -> list[str]:
    """Count the verdicts of a measure for its row."""
    verdicts = {c: said for c, said in measured.verdicts.items() if c[1] not in left_out}
    pairs = [pair for cell, pair in measured.pairs.items() if pair and cell in verdicts]
    effects = [pair.detectable for pair in pairs if pair.detectable]
    reach = [measured.pattern.format(of(effects)) for of in (median, max)] if effects else []
    return [
        measured.name,
        measured.unit,
        str(len(verdicts)),
        *(str(list(verdicts.values()).count(verdict)) for verdict in SHOWN),
        ", ".join(map(str, sorted({pair.n for pair in pairs}))),
        *(reach or [text.NOTHING] * 2),
    ]


def _by_mapping(verdicts: Mapping[str, Mapping[Cell, str]], base: str) -> Table:
    mappings = dict.fromkeys(mapping for found in verdicts.values() for _, mapping in found)
    rows = []
    for mapping in mappings:
        said = [[v for cell, v in by.items() if cell[1] == mapping] for by in verdicts.values()]
        rows.append([mapping, *(" / ".join(str(one.count(v)) for v in SHOWN) for one in said)])
    caption = f"Number of tasks, {' / '.join(SHOWN)}, against {base}. {BY_INTERVAL}"
    return Table(caption, ["mapping", *verdicts], rows)


def _disagreeing(verdicts: Mapping[str, Mapping[Cell, str]]) -> Table:
    """List the tasks on which a mapping is better by one measure and worse by another."""
    tasks: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for cell in dict.fromkeys(cell for found in verdicts.values() for cell in found):
        said = [found.get(cell, text.NOTHING) for found in verdicts.values()]
        if {"better", "worse"} <= set(said):
            tasks[cell[1], *said].append(cell[0])
    rows = [[*cells, ", ".join(those)] for cells, those in tasks.items()]
    caption = "Where the verdict depends on the measure."
    return Table(caption, ["mapping", *verdicts, "tasks"], rows)

"""What the records of a sweep show: its runs by cell, and values of those that count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pipeline.report import text
from pipeline.report.spread import Difference, Estimate, estimate, paired
from pipeline.sweep.plan import Cell, Plan
from pipeline.sweep.records import Record, Stage, read_records

Value = Callable[[dict[str, Any]], float | None]  # None: the run has none


@dataclass(frozen=True)
class Results:
    """A sweep, whole or half done.

    Attributes:
        folder: where it was read from.
        sweep: its config.
        expected: runs of the whole sweep.
        cells: the records of each (task, mapping), by stage and index.
        faults: what is wrong with each record that is left out.
    """

    folder: Path
    sweep: Any
    expected: int
    cells: dict[Cell, list[Record]]
    faults: list[str]

    @classmethod
    def of(cls, folder: Path, sweep: Any, plan: Plan) -> Self:
        """Those of a plan whose records a folder holds."""
        own = plan.own(read_records(folder))
        expected, cells = plan.expected(own.by_hash), plan.records(own.by_hash)
        return cls(folder, sweep, expected, cells, own.faults)

    @property
    def tasks(self) -> list[str]:
        """In the order of the config."""
        return list(dict.fromkeys(task for task, _ in self.cells))

    @property
    def mappings(self) -> list[str]:
        """Labels, in the order of the config."""
        return list(dict.fromkeys(mapping for _, mapping in self.cells))

    @property
    def records(self) -> list[Record]:
        """Of all cells."""
        return [record for cell in self.cells.values() for record in cell]

    @property
    def devices(self) -> list[str]:
        """Those that finished runs were done on."""
        return sorted({record.results["device"] for record in self.records if record.results})

    @property
    def standing(self) -> str:
        """How many runs there are, and what on: a sentence of the report's head."""
        count = ended(self.records)
        found = text.listing([f"{number} {status}" for status, number in sorted(count.items())])
        return (
            f"Runs, trials included: {found or 'none'} of {self.expected}. Device: "
            f"{text.listing(self.devices) or 'none yet'}."
        )

    @property
    def left_out(self) -> list[str]:
        """What the report cannot speak of, a sentence each."""
        return [f"Left out: {fault}." for fault in self.faults]

    def of_stage(self, cell: Cell, *stages: Stage) -> list[Record]:
        """The trials of a cell, or its runs that count, whatever came of them."""
        return [record for record in self.cells[cell] if record.stage in stages]

    def counting(self, cell: Cell) -> list[Record]:
        """The runs that count: with the chosen setting, or all where none is chosen."""
        return self.of_stage(cell, "final", "grid")

    def diverged(self, cell: Cell) -> int:
        """How many of the runs that count."""
        return ended(self.counting(cell))["diverged"]

    def finished(self, cell: Cell) -> list[dict[str, Any]]:
        """What the runs that count have given."""
        return [record.results for record in self.counting(cell) if record.results]

    def by_seed(self, cell: Cell, value: Value) -> dict[int, float]:
        """A value of each run that counts and has one; run k has seed k."""
        counting = self.counting(cell)
        found = {record.index: value(record.results) for record in counting if record.results}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def spread(self, cell: Cell, value: Value) -> Estimate | None:
        """Mean and standard deviation over the runs; None before the first has finished."""
        return estimate(self.by_seed(cell, value).values())

    def text(self, cell: Cell, value: Value, pattern: str) -> str:
        """`spread` by a pattern of `str.format`; n/a where no run has the value."""
        found = self.spread(cell, value)
        return text.MISSING if found is None else found.text(pattern)

    def difference(self, cell: Cell, base: Cell, value: Value) -> Difference | None:
        """A cell minus another one, over the seeds that both have."""
        return paired(self.by_seed(cell, value), self.by_seed(base, value))


def ended(records: Iterable[Record]) -> Counter[str]:
    """How many came to each end: finished, diverged, failed."""
    return Counter(record.status for record in records)

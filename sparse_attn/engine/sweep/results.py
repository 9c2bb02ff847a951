"""Results of a sweep: runs by cell, and values of the final runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sparse_attn.engine.sweep.plan import Cell, SweepPlan
from sparse_attn.engine.sweep.records import Record, Stage
from sparse_attn.reports import text
from sparse_attn.reports.measures import Value, by_seed
from sparse_attn.reports.seed_statistics import Estimate, estimate


@dataclass(frozen=True)
class Results:
    """A complete or partial sweep.

    Attributes:
        folder: folder of the sweep.
        sweep: its config.
        expected: number of runs in the complete sweep.
        cells: the records of each (task, mapping), by stage and index.
    """

    folder: Path
    sweep: Any
    expected: int
    cells: dict[Cell, list[Record]]

    @classmethod
    def of(cls, folder: Path, sweep: Any, plan: SweepPlan) -> Self:
        """Return the results of a plan from the records in a folder."""
        cells = plan.read(folder)
        done = {record.hash: record for records in cells.values() for record in records}
        return cls(folder, sweep, plan.expected(done), cells)

    @property
    def tasks(self) -> list[str]:
        """Task names, in the order of the config."""
        return list(dict.fromkeys(task for task, _ in self.cells))

    @property
    def mappings(self) -> list[str]:
        """Mapping labels, in the order of the config."""
        return list(dict.fromkeys(mapping for _, mapping in self.cells))

    @property
    def records(self) -> list[Record]:
        """The records of all cells."""
        return [record for cell in self.cells.values() for record in cell]

    @property
    def devices(self) -> list[str]:
        """Devices of the finished runs."""
        return sorted({record.results["device"] for record in self.records if record.results})

    @property
    def standing(self) -> str:
        """Number of runs and their devices, for the head of the report."""
        count = ended(self.records)
        found = text.listing([f"{number} {status}" for status, number in sorted(count.items())])
        return (
            f"Runs, trials included: {found or 'none'} of {self.expected}. Device: "
            f"{text.listing(self.devices) or 'none yet'}."
        )

    def of_stage(self, cell: Cell, *stages: Stage) -> list[Record]:
        """The records of a cell in some stages, whatever their status."""
        return [record for record in self.cells[cell] if record.stage in stages]

    def counting(self, cell: Cell) -> list[Record]:
        """The final runs: with the chosen setting, or all if nothing is chosen."""
        return self.of_stage(cell, "final", "grid")

    def scored(self, cell: Cell) -> dict[int, Record]:
        """The finished final runs, by seed."""
        return {record.index: record for record in self.counting(cell) if record.results}

    def runs(self, cell: Cell) -> dict[int, dict[str, Any]]:
        """Results of the finished final runs, by seed."""
        found = self.scored(cell).items()
        return {seed: record.results for seed, record in found if record.results}

    def finished(self, cell: Cell) -> list[dict[str, Any]]:
        """Results of the finished final runs."""
        return list(self.runs(cell).values())

    def by_seed(self, cell: Cell, value: Value) -> dict[int, float]:
        """A value by seed, for the final runs that have it."""
        return by_seed(value, self.runs(cell))

    def spread(self, cell: Cell, value: Value) -> Estimate | None:
        """Mean and standard deviation over the final runs; None without any."""
        return estimate(self.by_seed(cell, value).values())

    def text(self, cell: Cell, value: Value, pattern: str) -> str:
        """Format `spread` by a `str.format` pattern; n/a without values."""
        found = self.spread(cell, value)
        return text.MISSING if found is None else found.text(pattern)


def ended(records: Iterable[Record]) -> Counter[str]:
    """Number of runs by status: finished, diverged, failed."""
    return Counter(record.status for record in records)

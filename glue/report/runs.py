"""What a results folder holds: the sweep's config, and its records by task and mapping."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from glue.sweep.config import BASELINE, SweepConfig
from glue.sweep.plan import make_plan
from pipeline.sweep.records import SWEEP_FILE, Record, read_content, read_records


@dataclass(frozen=True)
class Sweep:
    """A sweep, whole or half done.

    folder: where it was read from.
    config: what sweep.json holds.
    expected: runs of the whole sweep.
    tasks: names as records have them, in the order of the config.
    cells: the records of each (task, mapping), by stage and index.
    faults: what is wrong with each record that is left out.
    """

    folder: Path
    config: dict[str, Any]
    expected: int
    tasks: tuple[str, ...]
    cells: dict[tuple[str, str], list[Record]]
    faults: list[str]

    @property
    def mappings(self) -> tuple[str, ...]:
        """Labels, in the order of the config."""
        return tuple(self.config["mappings"])

    @property
    def fair(self) -> bool:
        """Whether settings were chosen on held-out rows, and not on the dev set."""
        return bool(self.config["protocol"] == "fair")

    @property
    def records(self) -> list[Record]:
        return [record for cell in self.cells.values() for record in cell]

    def count(self, status: str) -> int:
        """Number of runs, of all stages, that came to this end."""
        return sum(record.status == status for record in self.records)

    def searched(self, task: str, mapping: str) -> list[Record]:
        """Finished trials, or finished points of the grid, in their order."""
        stage = "trial" if self.fair else "grid"
        return [r for r in self.cells[task, mapping] if r.stage == stage and r.results]

    def scored(self, task: str, mapping: str) -> dict[int, Record]:
        """The runs that count, by seed: final ones, or each seed's best point of the grid."""
        if self.fair:
            finals = (r for r in self.cells[task, mapping] if r.stage == "final" and r.results)
            return {record.index: record for record in finals}
        best: dict[int, Record] = {}
        for record in self.searched(task, mapping):
            seed = record.config["train"]["seed"]
            if seed not in best or record.score > best[seed].score:
                best[seed] = record
        return dict(sorted(best.items()))

    def searches(self, mapping: str) -> int:
        """Settings tried for a mapping: trials, or points of the grid for one seed."""
        if self.fair:
            return int(self.config["trials"])
        candidate = SweepConfig.from_dict(self.config).mappings[mapping]
        return len(self.config["learning_rates"]) * len(candidate.combinations)


def read_sweep(folder: Path) -> Sweep:
    """The sweep in a results folder.

    Raises:
        ValueError: the folder holds no sweep, or not one record of it.
    """
    names = SweepConfig.__dataclass_fields__
    content = read_content(folder, "glue")
    config = {"output_dir": str(folder), **{k: v for k, v in content.items() if k in names}}
    try:
        sweep = SweepConfig.from_dict(config)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{folder}: {SWEEP_FILE} is not whole ({error!r}); start the sweep again with the "
            "same config in a new folder, with a copy of its runs"
        ) from None
    plan = make_plan(sweep)
    own = plan.own(read_records(folder))
    if not own.by_hash:
        reason = f" ({len(own.faults)} not usable: {own.faults[0]})" if own.faults else ""
        raise ValueError(
            f"{folder}: no record of the sweep in {SWEEP_FILE} is there{reason}; start it with "
            "`python -m glue sweep`, or name the folder that it writes to"
        )
    expected, cells = plan.expected(own.by_hash), plan.records(own.by_hash)
    return Sweep(folder, config, expected, tuple(sweep.task_names), cells, own.faults)


def first_split(record: Record) -> str:
    """The split that the score is of."""
    return next(iter(cast(dict[str, Any], record.results)["predictions"]))


def results_of(record: Record) -> dict[str, Any]:
    """The results of a finished run."""
    return cast(dict[str, Any], record.results)


def others(sweep: Sweep) -> list[str]:
    """Every mapping but the one that the others are compared with."""
    return [mapping for mapping in sweep.mappings if mapping != BASELINE]

"""What a results folder holds: the sweep's config, and its records by task and mapping."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from glue.sweep.config import BASELINE
from glue.sweep.records import FORMAT, SWEEP_FILE, Record, read_records
from glue.tasks import get_task

NEEDED = (
    "score",
    "main_metric",
    "metrics",
    "rows",
    "per_epoch",
    "log",
    "sparsity",
    "seconds",
    "peak_memory_mib",
    "device",
    "versions",
    "predictions",
)


@dataclass(frozen=True)
class Sweep:
    """A sweep, whole or half done.

    folder: where it was read from.
    config: what sweep.json holds.
    tasks: names as records have them, in the order of the config.
    cells: the records of each (task, mapping), by stage and index.
    faults: what is wrong with each record that is left out.
    """

    folder: Path
    config: dict[str, Any]
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
        values = self.config["mappings"][mapping]["params"].values()
        sizes = (len(value) if isinstance(value, list) else 1 for value in values)
        return len(self.config["learning_rates"]) * math.prod(sizes)

    @property
    def expected(self) -> int:
        """Runs of the whole sweep; where every trial came to nothing there are no final ones."""
        return sum(
            self.searches(mapping) + self.config["seeds"] * (not self._hopeless(task, mapping))
            if self.fair
            else self.searches(mapping) * self.config["seeds"]
            for task, mapping in self.cells
        )

    def _hopeless(self, task: str, mapping: str) -> bool:
        trials = [r for r in self.cells[task, mapping] if r.stage == "trial"]
        return len(trials) == self.config["trials"] and not any(r.results for r in trials)


def read_sweep(folder: Path) -> Sweep:
    """The sweep in a results folder.

    Raises:
        ValueError: the folder holds no sweep, or not one record of it.
    """
    config = _read_config(folder)
    names = tuple(config.get("task_names") or map(_task_name, config["tasks"]))
    cells: dict[tuple[str, str], list[Record]] = {
        (task, mapping): [] for task in names for mapping in config["mappings"]
    }
    records = read_records(folder)
    faults = list(records.faults)
    for record in records.by_hash.values():
        fault = _fault(record, config, cells)
        if fault:
            where = f"{record.task}.{record.mapping}.{record.stage}{record.index}.{record.hash}"
            faults.append(f"{where}: {fault}")
        else:
            cells[record.task, record.mapping].append(record)
    if not any(cells.values()):
        found = f" ({len(faults)} not usable: {faults[0]})" if faults else ""
        raise ValueError(
            f"{folder}: no record of the sweep in {SWEEP_FILE} is there{found}; start it with "
            "`python -m glue sweep`, or name the folder that it writes to"
        )
    for key, cell in cells.items():
        cells[key] = _one_each(sorted(cell, key=lambda r: (r.stage, r.index, r.hash)), faults)
    return Sweep(folder, config, names, cells, faults)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / SWEEP_FILE
    if not file.is_file():
        raise ValueError(
            f"{folder}: has no {SWEEP_FILE}, so it is not the folder of a sweep; name the "
            "output_dir of one, which `python -m glue sweep` writes"
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{folder}: {SWEEP_FILE} is not readable ({error}); start the sweep again with the "
            "same config, which writes that file anew and keeps finished runs"
        ) from None
    version = config.get("format") if isinstance(config, dict) else None
    if version != FORMAT:
        raise ValueError(
            f"{folder}: {SWEEP_FILE} is of format {version}, this version reads format {FORMAT}; "
            "make the report with the version that ran the sweep"
        )
    return cast(dict[str, Any], config)


def _task_name(key: str) -> str:
    try:
        return get_task(key).name
    except (ValueError, OSError):
        # a YAML file of another machine
        return Path(key).stem


def _fault(record: Record, config: dict[str, Any], cells: Any) -> str | None:
    """Why a record cannot be used, or None."""
    limits = {"trial": config["trials"], "final": config["seeds"]}
    stages = ("trial", "final") if config["protocol"] == "fair" else ("grid",)
    if (record.task, record.mapping) not in cells or record.stage not in stages:
        return f"not of the sweep that {SWEEP_FILE} describes"
    if record.index >= limits.get(record.stage, math.inf):
        return f"beyond the number of runs that {SWEEP_FILE} asks for"
    if record.status == "finished":
        missing = [key for key in NEEDED if key not in (record.results or {})]
        if missing:
            return f"its results lack {', '.join(missing)}"
        splits = results_of(record)["predictions"].values()
        if not splits or any(
            len(s["predicted"]) != len(s["labels"]) or not s["labels"] for s in splits
        ):
            return "its results do not have one prediction for each label"
    return None


def _one_each(cell: list[Record], faults: list[str]) -> list[Record]:
    """One record for each place; of two final runs the one with the best trial's setting."""
    trials = [r for r in cell if r.stage == "trial" and r.results]
    best = _setting(max(trials, key=lambda r: r.score)) if trials else None
    kept: dict[tuple[str, int], Record] = {}
    for record in sorted(cell, key=lambda r: _setting(r) != best):
        place = record.stage, record.index
        if kept.setdefault(place, record) is not record:
            name = f"{record.task}.{record.mapping}.{record.stage}{record.index}.{record.hash}"
            faults.append(f"{name}: a second record for the same run; {kept[place].hash} is used")
    return [kept[place] for place in sorted(kept)]


def _setting(record: Record) -> tuple[Any, Any]:
    return record.config["train"]["learning_rate"], record.config["mapping"]


def first_split(record: Record) -> str:
    """The split that the score is of."""
    return next(iter(cast(dict[str, Any], record.results)["predictions"]))


def results_of(record: Record) -> dict[str, Any]:
    """The results of a finished run."""
    return cast(dict[str, Any], record.results)


def others(sweep: Sweep) -> list[str]:
    """Every mapping but the one that the others are compared with."""
    return [mapping for mapping in sweep.mappings if mapping != BASELINE]

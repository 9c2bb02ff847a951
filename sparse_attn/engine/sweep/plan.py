"""The runs of a sweep, and which are due next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparse_attn.engine.sweep.records import (
    FOLDER,
    Record,
    Stage,
    identity,
    read_packed,
    run_hash,
)
from sparse_attn.system.files import read_json
from sparse_attn.system.run_folders import RESULTS_FILE

Cell = tuple[str, str]
LAST_LINES = 20  # kept of the log of a run that failed


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its cell and its config.

    task, mapping: its cell, as named in records.
    stage: trial: runs first, to choose a setting; final: runs with the chosen setting; grid: a run
        of a sweep without choice.
    index: number of the run within its cell and stage.
    """

    task: str
    mapping: str
    stage: Stage
    index: int
    config: Any  # a `Run` of engine.experiment

    def __str__(self) -> str:
        return f"{self.task} {self.mapping} {self.stage} {self.index}"

    @cached_property
    def hash(self) -> str:
        """Hash of the run, from `run_hash`."""
        return run_hash(self.mapping, self._identity)

    @property
    def stem(self) -> str:
        """Name of its folder, config and log."""
        return f"{self.task}.{self.mapping}.{self.stage}{self.index}.{self.hash}"

    def folder(self, sweep: Path) -> Path:
        """Return its folder in that of the sweep."""
        return sweep / FOLDER / self.stem

    def log(self, sweep: Path) -> Path:
        """Return the file with its output, beside its folder."""
        return sweep / FOLDER / f"{self.stem}.log"

    def record(self, **outcome: Any) -> Record:
        """Return the record of this run with its outcome."""
        return Record(
            self.task, self.mapping, self.stage, self.index, self.hash, self._identity, **outcome
        )

    def read(self, sweep: Path) -> Record | None:
        """Return its record from results.json, or from its log if it left only that.

        None if it has not started; a broken file is a ValueError.
        """
        file, log = self.folder(sweep) / RESULTS_FILE, self.log(sweep)
        if not file.exists():
            if not log.exists():
                return None
            lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            return self.record(status="failed", error="\n".join(lines))
        results = read_json(file, str(sweep), "delete it, so that the sweep runs it again")
        if results.get("status") == "diverged":
            return self.record(status="diverged", error=results["error"])
        return self.record(status="finished", results=results)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return identity(self.config)


class SweepPlan:
    """Runs of a sweep. The due runs depend only on the records, so a killed sweep can resume.

    Args:
        first: the runs of each cell that can start immediately.
        choose: returns the final runs of a cell, given its best first run; None for no final runs.
        seeds: number of final runs per cell.

    Raises:
        ValueError: two first runs are the same and would share a record.
    """

    def __init__(
        self,
        first: dict[Cell, list[PlannedRun]],
        choose: Callable[[Cell, PlannedRun], list[PlannedRun]] | None = None,
        seeds: int = 0,
    ) -> None:
        self.first = first
        self._choose = choose
        self._seeds = seeds
        known: dict[str, PlannedRun] = {}
        for run in itertools.chain.from_iterable(first.values()):
            other = known.setdefault(run.hash, run)
            if other is not run:
                raise ValueError(
                    f"{run.task} {run.mapping} and {other.task} {other.mapping}: the same run by "
                    "its config, which leaves out where files are; give your own data sets "
                    "different names"
                )

    @property
    def cells(self) -> list[Cell]:
        return list(self.first)

    def expected(self, done: dict[str, Record]) -> int:
        """Count all runs; a cell whose first runs all diverged has no final runs."""
        return sum(self.size(cell, done) for cell in self.cells)

    def size(self, cell: Cell, done: dict[str, Record]) -> int:
        """Count the runs of a cell."""
        runs = self.first[cell]
        hopeless = all(run.hash in done and done[run.hash].status == "diverged" for run in runs)
        return len(runs) + (0 if hopeless else self._seeds)

    def due(self, done: dict[str, Record]) -> Iterator[PlannedRun]:
        """Yield the runs without a record that can start: first runs, then known final runs.

        Cells take turns, so that an interrupted sweep covers every mapping.
        """
        for stage in (self.first, self.finals(done)):
            for runs in itertools.zip_longest(*stage.values()):
                yield from (run for run in runs if run is not None and run.hash not in done)

    def finals(self, done: dict[str, Record]) -> dict[Cell, list[PlannedRun]]:
        """Return the final runs of each cell that has a chosen setting."""
        if self._choose is None:
            return {}
        best = {cell: self._best(runs, done) for cell, runs in self.first.items()}
        return {cell: self._choose(cell, run) if run else [] for cell, run in best.items()}

    def read(self, folder: Path) -> dict[Cell, list[Record]]:
        """Return the records of this sweep by cell; runs.jsonl may hold others.

        Raises:
            ValueError: a record is broken.
        """
        found = read_packed(folder)
        for runs in self.first.values():
            self._read(folder, runs, found)
        finals = self.finals(found)
        for runs in finals.values():
            self._read(folder, runs, found)
        return {
            cell: [found[run.hash] for run in (*runs, *finals.get(cell, ())) if run.hash in found]
            for cell, runs in self.first.items()
        }

    def _read(self, folder: Path, runs: list[PlannedRun], found: dict[str, Record]) -> None:
        """Add the records of run folders; results are newer than those of runs.jsonl."""
        for run in runs:
            record = run.read(folder)
            if record is not None and (record.status != "failed" or run.hash not in found):
                found[run.hash] = record

    def completed(self, folder: Path) -> dict[str, Record]:
        """Return the records of the runs that need not be repeated, by hash."""
        records = itertools.chain.from_iterable(self.read(folder).values())
        return {record.hash: record for record in records if record.status != "failed"}

    def shard(self, index: int, count: int) -> SweepPlan:
        """Return the part of the sweep that one of several jobs does: every `count`-th cell."""
        cells = dict(list(self.first.items())[index::count])
        return SweepPlan(cells, self._choose, self._seeds)

    def _best(self, runs: list[PlannedRun], done: dict[str, Record]) -> PlannedRun | None:
        """Return the run with the highest score, once all have finished or diverged.

        The choice waits for failed runs to be repeated, since they count towards the budget.
        """
        if any(run.hash not in done or done[run.hash].status == "failed" for run in runs):
            return None
        finished = [run for run in runs if done[run.hash].status == "finished"]
        return max(finished, key=lambda run: done[run.hash].score, default=None)


def grid(runs: Mapping[Cell, list[Any]]) -> SweepPlan:
    """Return a plan that runs every config; config k of a cell is its run k."""
    return SweepPlan(_planned(runs, "grid"))


def best_of(
    trials: Mapping[Cell, list[Any]], final: Callable[[Any, int], Any], seeds: int
) -> SweepPlan:
    """Plan a trial for each config of a cell, then final runs of the best with seeds 0, 1, ...

    Args:
        trials: the trial configs of each cell, with seeds from `FIRST_TRIAL_SEED`.
        final: returns the config of a final run, given the best trial and a seed.
        seeds: number of final runs per cell.
    """

    def choose(cell: Cell, best: PlannedRun) -> list[PlannedRun]:
        configs = [final(best.config, seed) for seed in range(seeds)]
        return _planned({cell: configs}, "final")[cell]

    return SweepPlan(_planned(trials, "trial"), choose, seeds)


def _planned(configs: Mapping[Cell, list[Any]], stage: Stage) -> dict[Cell, list[PlannedRun]]:
    return {
        cell: [PlannedRun(*cell, stage, k, config) for k, config in enumerate(found)]
        for cell, found in configs.items()
    }

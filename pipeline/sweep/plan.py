"""Which runs a sweep consists of, and which of them are due next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.sweep.records import SWEEP_FILE, Record, Records, Stage, hash_of

Cell = tuple[str, str]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: where it belongs, and its config.

    task, mapping: its cell, by the names that the records have.
    stage: trial: done first, so that a setting can be chosen; final: with the chosen setting; grid:
        done first in a sweep that chooses nothing.
    index: counts the runs of a cell and stage.
    """

    task: str
    mapping: str
    stage: Stage
    index: int
    config: Any  # a `Run` of pipeline.experiment

    def __str__(self) -> str:
        return f"{self.task} {self.mapping} {self.stage} {self.index}"

    @cached_property
    def hash(self) -> str:
        """What a finished run is known by; two labels for one mapping stay two runs."""
        return hash_of({"label": self.mapping, **self._comparable})

    def record(self, **outcome: Any) -> Record:
        """The record of this run with what became of it."""
        return Record(
            self.task, self.mapping, self.stage, self.index, self.hash, self._comparable, **outcome
        )

    @cached_property
    def _comparable(self) -> dict[str, Any]:
        found: dict[str, Any] = self.config.comparable()
        return found


class Plan:
    """The runs of a sweep. What is due depends on the records alone, so it survives a kill.

    Args:
        first: the runs of each cell that can start at once.
        choose: the final runs of a cell, given its best first run; None: there are none.
        seeds: how many final runs a cell has.

    Raises:
        ValueError: two first runs are the same one, so that one record would stand for both.
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
        """How many runs there are: where every first one diverged there are no final ones."""
        return sum(self.size(cell, done) for cell in self.cells)

    def size(self, cell: Cell, done: dict[str, Record]) -> int:
        """How many runs a cell has."""
        runs = self.first[cell]
        hopeless = all(run.hash in done and done[run.hash].status == "diverged" for run in runs)
        return len(runs) + (0 if hopeless else self._seeds)

    def due(self, done: dict[str, Record]) -> Iterator[PlannedRun]:
        """The runs that can start and have no record: first ones, then those finals that are known.

        Cells take turns, so that a sweep cut short has something of every mapping.
        """
        for stage in (self.first, self.finals(done)):
            for runs in itertools.zip_longest(*stage.values()):
                yield from (run for run in runs if run is not None and run.hash not in done)

    def finals(self, done: dict[str, Record]) -> dict[Cell, list[PlannedRun]]:
        """The final runs of each cell whose setting has been chosen."""
        if self._choose is None:
            return {}
        best = {cell: self._best(runs, done) for cell, runs in self.first.items()}
        return {cell: self._choose(cell, run) if run else [] for cell, run in best.items()}

    def records(self, found: dict[str, Record]) -> dict[Cell, list[Record]]:
        """The records that are of this sweep; a folder may hold those of another one too."""
        finals = self.finals(found)
        return {
            cell: [found[run.hash] for run in (*runs, *finals.get(cell, ())) if run.hash in found]
            for cell, runs in self.first.items()
        }

    def own(self, found: Records) -> Records:
        """The same by hash; the others are faults."""
        cells = self.records(found.by_hash)
        own = {record.hash: record for cell in cells.values() for record in cell}
        others = [record for key, record in found.by_hash.items() if key not in own]
        strange = [
            f"{other.stem}: not a run of the sweep that {SWEEP_FILE} describes" for other in others
        ]
        return Records(own, [*found.faults, *strange])

    def _best(self, runs: list[PlannedRun], done: dict[str, Record]) -> PlannedRun | None:
        """The run with the highest score, once all have come to an end.

        A failed one has not: its budget belongs to the mapping, and the choice waits for it.
        """
        if any(run.hash not in done or done[run.hash].status == "failed" for run in runs):
            return None
        finished = [run for run in runs if done[run.hash].status == "finished"]
        return max(finished, key=lambda run: done[run.hash].score, default=None)


def grid(runs: Mapping[Cell, list[Any]]) -> Plan:
    """Runs of which all count, by the configs of each cell; run k has index k."""
    return Plan(_planned(runs, "grid"))


def best_of(trials: Mapping[Cell, list[Any]], final: Callable[[Any, int], Any], seeds: int) -> Plan:
    """A trial of each config of a cell, then the best one with seeds 0, 1, ...

    Args:
        trials: their configs, whose seeds should be from `FIRST_TRIAL_SEED` on.
        final: the config of a run that counts, given that of the best trial and a seed.
        seeds: how many runs of a cell count.
    """

    def choose(cell: Cell, best: PlannedRun) -> list[PlannedRun]:
        configs = [final(best.config, seed) for seed in range(seeds)]
        return _planned({cell: configs}, "final")[cell]

    return Plan(_planned(trials, "trial"), choose, seeds)


def _planned(configs: Mapping[Cell, list[Any]], stage: Stage) -> dict[Cell, list[PlannedRun]]:
    return {
        cell: [PlannedRun(*cell, stage, k, config) for k, config in enumerate(found)]
        for cell, found in configs.items()
    }

"""Which runs a sweep consists of, and which of them are due next."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from glue.checkpoints import comparable
from glue.config import MappingConfig, RunConfig
from glue.sweep.config import SweepConfig, TaskConfig
from glue.sweep.records import Record, hash_of
from glue.tasks import get_task

# seeds of trials stay clear of those of final runs: the best trial must not owe it to its seed
FIRST_TRIAL_SEED = 1000


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: where it belongs, and what `glue train` would be given."""

    task: str
    mapping: str
    stage: Literal["trial", "final", "grid"]
    index: int
    config: RunConfig

    @cached_property
    def hash(self) -> str:
        """What a finished run is known by; two labels for one mapping stay two runs."""
        return hash_of({"label": self.mapping, **comparable(self.config)})

    def record(self, **outcome: Any) -> Record:
        """The record of this run with what became of it."""
        return Record(
            self.task,
            self.mapping,
            self.stage,
            self.index,
            self.hash,
            comparable(self.config),
            **outcome,
        )


class Plan:
    """The runs of a sweep. What is due depends on the records alone, so it survives a kill."""

    def __init__(self, sweep: SweepConfig) -> None:
        self.sweep = sweep
        self.cells = list(itertools.product(sweep.tasks, sweep.mappings))
        if sweep.protocol == "fair":
            self.first = {cell: list(self._trials(*cell)) for cell in self.cells}
        else:
            self.first = {cell: list(self._grid(*cell)) for cell in self.cells}

    def expected(self, done: dict[str, Record]) -> int:
        """How many runs there are: where every trial diverged there are no final ones."""
        trials = sum(map(len, self.first.values()))
        if self.sweep.protocol == "paper":
            return trials
        hopeless = sum(
            all(run.hash in done and done[run.hash].status == "diverged" for run in runs)
            for runs in self.first.values()
        )
        return trials + self.sweep.seeds * (len(self.cells) - hopeless)

    def settings(self) -> Iterator[tuple[str, MappingConfig]]:
        """Every label with its mapping at every value it may be run with."""
        for (_, label), runs in self.first.items():
            for run in runs:
                yield label, run.config.mapping

    def due(self, done: dict[str, Record]) -> Iterator[PlannedRun]:
        """The runs that can start and have no record: trials, then finals of cells that have all.

        Cells take turns, so that a sweep cut short has something of every mapping.
        """
        finals = self.finals(done)
        for stage in (self.first, finals):
            for runs in itertools.zip_longest(*stage.values()):
                yield from (run for run in runs if run is not None and run.hash not in done)

    def finals(self, done: dict[str, Record]) -> dict[tuple[str, str], list[PlannedRun]]:
        """The final runs of each cell whose setting has been chosen."""
        if self.sweep.protocol == "paper":
            return {}
        return {cell: list(self._finals(*cell, done)) for cell in self.cells}

    def records(self, found: dict[str, Record]) -> dict[tuple[str, str], list[Record]]:
        """The records that are of this sweep, by task's name and label."""
        finals = self.finals(found)
        names = dict(zip(self.sweep.tasks, self.sweep.task_names, strict=True))
        return {
            (names[cell[0]], cell[1]): [
                found[run.hash] for run in (*runs, *finals.get(cell, ())) if run.hash in found
            ]
            for cell, runs in self.first.items()
        }

    def _trials(self, task: str, mapping: str) -> Iterator[PlannedRun]:
        """Trial k: learning rate, seed (the same for every mapping) and values go round."""
        sweep, candidate = self.sweep, self.sweep.mappings[mapping]
        rates = sweep.learning_rates
        combinations = candidate.combinations
        # an order that has nothing to do with that of the learning rates, always the same
        random.Random(",".join(candidate.values)).shuffle(combinations)
        whole = math.lcm(len(rates), len(combinations))
        for k in range(sweep.trials):
            # after a whole round the same pairs would come again: one place on
            params = combinations[(k + k // whole) % len(combinations)]
            config = self._config(
                task,
                candidate.with_params(params),
                learning_rate=rates[k % len(rates)],
                seed=FIRST_TRIAL_SEED + k // len(rates),
            )
            config = replace(config, selection=sweep.selection, evaluate="epoch")
            yield self._run(task, mapping, "trial", k, config)

    def _finals(self, task: str, mapping: str, done: dict[str, Record]) -> Iterator[PlannedRun]:
        """The best trial's setting with every seed, once all trials have come to an end.

        A failed one has not: its budget belongs to the mapping, and the choice waits for it.
        """
        trials = self.first[task, mapping]
        if any(run.hash not in done or done[run.hash].status == "failed" for run in trials):
            return
        finished = [run for run in trials if done[run.hash].status == "finished"]
        if not finished:
            return
        best = max(finished, key=lambda run: done[run.hash].score).config
        for seed in range(self.sweep.seeds):
            config = self._config(
                task, best.mapping, learning_rate=best.train.learning_rate, seed=seed
            )
            yield self._run(task, mapping, "final", seed, config)

    def _grid(self, task: str, mapping: str) -> Iterator[PlannedRun]:
        """Every learning rate with every value of the parameters, for every seed."""
        sweep, candidate = self.sweep, self.sweep.mappings[mapping]
        settings = itertools.product(
            range(sweep.seeds), sweep.learning_rates, candidate.combinations
        )
        for k, (seed, rate, params) in enumerate(settings):
            config = self._config(
                task, candidate.with_params(params), learning_rate=rate, seed=seed
            )
            yield self._run(task, mapping, "grid", k, replace(config, evaluate="epoch"))

    def _config(self, task: str, mapping: MappingConfig, **train: Any) -> RunConfig:
        own = self.sweep.tasks[task] or TaskConfig()
        if own.epochs is not None:
            train["epochs"] = own.epochs
        return RunConfig(
            task=task,
            model=self.sweep.model,
            output_dir="",
            data_dir=self.sweep.data_dir,
            train_rows=own.train_rows,
            evaluate="end",
            keep_model=False,
            mapping=mapping,
            train=replace(self.sweep.train, **train),
        )

    def _run(
        self, task: str, mapping: str, stage: Any, index: int, config: RunConfig
    ) -> PlannedRun:
        return PlannedRun(get_task(task).name, mapping, stage, index, config)

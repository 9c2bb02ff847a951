"""Runs of a sweep that count in the report, under either protocol."""

from __future__ import annotations

from typing import Any, cast

from sparse_attn.engine.sweep.records import Record
from sparse_attn.engine.sweep.results import Results


class Sweep(Results):
    """A complete or partial sweep."""

    @property
    def fair(self) -> bool:
        """Return whether settings were chosen on held-out rows, not on the dev set."""
        return bool(self.sweep.protocol == "fair")

    def searched(self, task: str, mapping: str) -> list[Record]:
        """Return the finished trials or grid points, in order."""
        return [r for r in self.of_stage((task, mapping), "trial", "grid") if r.results]

    def scored(self, task: str, mapping: str) -> dict[int, Record]:
        """Return the runs that count, by seed: final runs, or the best grid point of each seed."""
        counting = [r for r in self.counting((task, mapping)) if r.results]
        if self.fair:
            return {record.index: record for record in counting}
        best: dict[int, Record] = {}
        for record in counting:
            seed = record.config["train"]["seed"]
            if seed not in best or record.score > best[seed].score:
                best[seed] = record
        return dict(sorted(best.items()))

    def first(self, task: str) -> Record | None:
        """Return a finished run of a task: one that counts, or else a trial."""
        scored = [run for m in self.mappings for run in self.scored(task, m).values()]
        searched = [run for m in self.mappings for run in self.searched(task, m)]
        return next(iter(scored + searched), None)

    def metric(self, task: str) -> str | None:
        """Return the main metric of a task; None before a run has finished."""
        first = self.first(task)
        return None if first is None else str(results_of(first)["main_metric"])

    def searches(self, mapping: str) -> int:
        """Count the settings tried for a mapping: trials, or grid points per seed."""
        if self.fair:
            return int(self.sweep.trials)
        combinations = self.sweep.mappings[mapping].combinations
        return len(self.sweep.learning_rates) * len(combinations)


def first_split(record: Record) -> str:
    """Return the name of the split that is scored."""
    return next(iter(results_of(record)["predictions"]))


def results_of(record: Record) -> dict[str, Any]:
    """Return the results of a finished run."""
    return cast(dict[str, Any], record.results)

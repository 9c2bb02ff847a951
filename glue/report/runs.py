"""Runs of a sweep that count in the report, under either protocol."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.records import Record
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports.bootstrap import compare
from sparse_attn.reports.measures import Runs
from sparse_attn.reports.seed_statistics import Difference


class Sweep(Results):
    """A complete or partial sweep."""

    @property
    def fair(self) -> bool:
        """Return whether settings were chosen on held-out rows, not on the dev set."""
        return bool(self.sweep.protocol == "fair")

    def searched(self, cell: Cell) -> list[Record]:
        """Return the finished trials or grid points, in order."""
        return [record for record in self.of_stage(cell, "trial", "grid") if record.results]

    def scored(self, cell: Cell) -> dict[int, Record]:
        """Return the runs that count, by seed: final runs, or the best grid point of each seed."""
        if self.fair:
            return super().scored(cell)
        best: dict[int, Record] = {}
        for record in self.counting(cell):
            seed = record.config["train"]["seed"]
            if record.results and (seed not in best or record.score > best[seed].score):
                best[seed] = record
        return dict(sorted(best.items()))

    def first(self, task: str) -> Record | None:
        """Return a finished run of a task: one that counts, or else a trial."""
        scored = [run for m in self.mappings for run in self.scored((task, m)).values()]
        searched = [run for m in self.mappings for run in self.searched((task, m))]
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


def results_of(record: Record) -> dict[str, Any]:
    """Return the results of a finished run."""
    return cast(dict[str, Any], record.results)


def setting_of(record: Record) -> tuple[float, dict[str, Any]]:
    """Return the learning rate and the parameters of the mapping."""
    return record.config["train"]["learning_rate"], record.config["mapping"]["params"]


def first_split(run: dict[str, Any]) -> str:
    """Return the name of the split that is scored."""
    return next(iter(run["predictions"]))


def labels(run: dict[str, Any]) -> list[float]:
    """Return the labels of the scored split."""
    found: list[float] = run["predictions"][first_split(run)]["labels"]
    return found


def predicted(run: dict[str, Any]) -> list[float]:
    """Return the prediction for each example of the scored split."""
    found: list[float] = run["predictions"][first_split(run)]["predicted"]
    return found


def compare_runs(ours: Runs, base: Runs) -> Difference | None:
    """Compare the predictions of common seeds by the crossed bootstrap; one seed has no p."""
    seeds = [seed for seed in ours if seed in base]
    # both runs of a pair must have the same examples
    seeds = [seed for seed in seeds if labels(ours[seed]) == labels(base[seeds[0]])]
    seeds = [seed for seed in seeds if labels(base[seed]) == labels(base[seeds[0]])]
    if not seeds:
        return None
    found = compare(
        ours[seeds[0]]["main_metric"],
        np.array(labels(base[seeds[0]])),
        np.array([predicted(ours[seed]) for seed in seeds]),
        np.array([predicted(base[seed]) for seed in seeds]),
    )
    # with one seed, p is about that pair of runs and not about the mapping
    return found if len(seeds) > 1 else found._replace(p=None)

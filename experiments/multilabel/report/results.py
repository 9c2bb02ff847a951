"""What a results folder holds, by data set and method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.multilabel.config import MethodConfig, SweepConfig, TrainConfig
from experiments.multilabel.data.config import KINDS, DataConfig
from experiments.multilabel.plan import make_plan
from pipeline.config import ScheduleConfig
from pipeline.report.spread import Difference, Estimate, estimate, paired
from pipeline.sweep.records import SWEEP_FILE, Record, read_content, read_records

Measure = Callable[[dict[str, Any]], float]


def f1(average: str) -> Measure:
    """F1 in %."""
    return lambda results: 100 * float(results["f1"][average])


@dataclass(frozen=True)
class Results:
    """A sweep, whole or half done.

    Attributes:
        content: what sweep.json holds.
        records: of this sweep.
        faults: what is wrong with each record that is left out.
    """

    content: dict[str, Any]
    records: list[Record]
    faults: list[str]

    @property
    def data(self) -> list[str]:
        """Labels of the data sets, in the order of the config."""
        return list(self.content["data"])

    @property
    def methods(self) -> list[str]:
        """Labels of the methods, in the order of the config."""
        return list(self.content["methods"])

    @property
    def searched(self) -> bool:
        """Whether learning rates were tried."""
        return len(self.content["learning_rates"]) > 1

    def counting(self, data: str, method: str) -> list[Record]:
        """The runs of a cell that count, which trials of learning rates do not."""
        return [
            r for r in self.records if (r.task, r.mapping) == (data, method) and r.stage != "trial"
        ]

    def by_seed(self, data: str, method: str, measure: Measure) -> dict[int, float]:
        """The measure of every run of a cell that has finished."""
        finished = [record for record in self.counting(data, method) if record.results]
        return {record.index: measure(record.results or {}) for record in finished}

    def estimate(self, data: str, method: str, measure: Measure) -> Estimate | None:
        """Over the seeds that have finished."""
        return estimate(self.by_seed(data, method, measure).values())

    def difference(self, data: str, method: str, other: str, measure: Measure) -> Difference | None:
        """method - other over the seeds that both have."""
        found = (self.by_seed(data, name, measure) for name in (method, other))
        return paired(*found)

    def by_threshold(self, data: str, method: str) -> dict[str, Estimate]:
        """micro-F1 in %, had each threshold been the one."""
        runs = [record.results for record in self.counting(data, method) if record.results]
        names = runs[0]["micro_by_threshold"] if runs else ()
        found = {n: estimate(100 * run["micro_by_threshold"][n] for run in runs) for n in names}
        return {name: value for name, value in found.items() if value is not None}

    def ended(self, method: str) -> Counter[str]:
        """Runs of a method that count, by status, and those that are missing."""
        found: Counter[str] = Counter(
            r.status for data in self.data for r in self.counting(data, method)
        )
        found["missing"] = self.content["seeds"] * len(self.data) - found.total()
        return found


def read_results(folder: str) -> Results:
    """What `experiments.multilabel sweep` has left in a folder.

    Raises:
        ValueError: it holds no sweep of this experiment, or no record of it.
    """
    content = read_content(Path(folder), "experiments.multilabel")
    try:
        plan = make_plan(_config_of(content))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"results_dir={folder}: {SWEEP_FILE} is of no sweep of this experiment ({error}); "
            "expected the output_dir of `python -m experiments.multilabel sweep`"
        ) from None
    found = plan.own(read_records(Path(folder)))
    if not found.by_hash:
        left_out = f", {len(found.faults)} left out: {found.faults[0]}" if found.faults else ""
        raise ValueError(
            f"results_dir={folder}: holds no record yet{left_out}; run the sweep first"
        )
    return Results(content, list(found.by_hash.values()), found.faults)


def _config_of(content: dict[str, Any]) -> SweepConfig:
    """The config that sweep.json describes, with no folders."""
    return SweepConfig(
        output_dir="",
        data={name: _data_of(kinds) for name, kinds in content["data"].items()},
        methods={name: _method_of(method) for name, method in content["methods"].items()},
        learning_rates=content["learning_rates"],
        seeds=content["seeds"],
        train=TrainConfig(**content["train"]),
    )


def _data_of(kinds: dict[str, Any]) -> DataConfig:
    place = {"images": {"data_dir": ""}, "text": {"data_dir": ""}}
    made = {
        kind: KINDS[kind](**values, **place.get(kind, {}))
        for kind, values in kinds.items()
        if values is not None
    }
    return DataConfig(**made)


def _method_of(method: dict[str, Any]) -> MethodConfig:
    schedule = method["schedule"] and ScheduleConfig(**method["schedule"])
    return MethodConfig(**{**method, "schedule": schedule})

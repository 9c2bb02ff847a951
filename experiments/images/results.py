"""The records of a sweep, gathered by what they measure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.images.plan import make_plan
from experiments.images.sweep_config import SweepConfig
from pipeline.report.spread import Estimate, estimate
from pipeline.sweep.records import SWEEP_FILE, Record, read_content, read_records

BASELINE = "softmax"


@dataclass(frozen=True)
class Results:
    """What a sweep has given so far.

    Attributes:
        sweep: its config.
        records: of every label, trials and runs that count.
        faults: what is wrong with each record that is left out.
    """

    sweep: SweepConfig
    records: dict[str, list[Record]]
    faults: list[str]

    @property
    def baseline(self) -> str | None:
        """The label of plain softmax, with which the others are compared."""
        labels = (label for label, loss in self.sweep.losses.items() if loss.name == BASELINE)
        return next(labels, None)

    def of_stage(self, label: str, stage: str) -> list[Record]:
        """The trials, or the runs that count, of a loss."""
        return [record for record in self.records[label] if record.stage == stage]

    def finished(self, label: str) -> list[dict[str, Any]]:
        """What the runs that count have given."""
        return [record.results for record in self.of_stage(label, "final") if record.results]

    def by_seed(self, label: str, value: Callable[[dict[str, Any]], float]) -> dict[int, float]:
        """A value of each run that counts."""
        return {results["seed"]: value(results) for results in self.finished(label)}

    def spread(self, label: str, value: Callable[[dict[str, Any]], float]) -> Estimate | None:
        """Its mean and standard deviation over the runs; None before the first has finished."""
        return estimate(self.by_seed(label, value).values())

    def count(self) -> Counter[str]:
        """Runs by status, trials included."""
        return Counter(record.status for records in self.records.values() for record in records)


def read_results(folder: Path) -> Results:
    """The results of a sweep, finished or not.

    Raises:
        ValueError: no sweep of this experiment is there.
    """
    content = read_content(folder, "experiments.images")
    try:
        sweep = SweepConfig.from_content(content)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"results_dir={folder}: {SWEEP_FILE} is of no sweep of this experiment ({error}); "
            "expected the output_dir of `python -m experiments.images sweep`"
        ) from None
    plan, found = make_plan(sweep), read_records(folder)
    records = {label: runs for (_, label), runs in plan.records(found.by_hash).items()}
    return Results(sweep, records, plan.own(found).faults)


def error(results: dict[str, Any]) -> float:
    """Wrong classes among the test images, in percent."""
    return 100 * results["test"]["error"]


def criterion(results: dict[str, Any]) -> float:
    """The criterion on the test images."""
    return results["test"]["criterion"]


def negll(results: dict[str, Any]) -> float:
    """-log p of the test images; NaN where there are no probabilities."""
    return results["test"].get("negll", math.nan)

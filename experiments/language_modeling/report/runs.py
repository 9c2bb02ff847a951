"""The records of runs, put together by experiment, head and settings."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.language_modeling.config import HeadConfig
from experiments.language_modeling.records import FREE
from pipeline.files import differences
from pipeline.folders import RESULTS_FILE
from pipeline.report import text
from pipeline.report.spread import Difference, Estimate, estimate, paired

BASELINE = "softmax"
# what runs of one cell may differ in
_IGNORED = {*FREE, "seed", "device", "chunk"}


@dataclass(frozen=True, eq=False)
class Run:
    """One record: results.json of a run, or a copy of it under the name of its head and seed."""

    experiment: str
    record: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.record["config"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def head(self) -> str:
        """Short name; a run that was cut off in its first epoch has written none."""
        return str(self.record.get("head") or HeadConfig(**self.config["head"]).name)

    def value(self, measure: str) -> float | None:
        """A number of the record by its keys, joined by dots; None where it was not measured.

        Also `epochs`, how many were trained, and `epoch_seconds`, what one took on average.
        """
        if measure == "epochs":
            return len(self.record["epochs"])
        if measure == "epoch_seconds":
            seconds = [epoch["seconds"] for epoch in self.record["epochs"]]
            return fmean(seconds) if seconds else None
        found = at(self.record, measure)
        return None if found is None else float(found)


@dataclass(frozen=True, eq=False)
class Cell:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: Sequence[Run]

    @property
    def head(self) -> str:
        return self.runs[0].head

    @property
    def config(self) -> dict[str, Any]:
        return self.runs[0].config

    @property
    def finished(self) -> list[Run]:
        """What means are taken over."""
        return [run for run in self.runs if run.record["status"] == "finished"]

    def setting(self, key: str) -> str:
        """A value of the config in words; of a section, such as finetune, whether it is there."""
        value = at(self.config, key)
        return "on" if isinstance(value, dict) else "off" if value is None else text.plain(value)

    def values(self, measure: str) -> dict[int, float]:
        """By seed, where it was measured."""
        found = {run.seed: run.value(measure) for run in self.finished}
        return {seed: value for seed, value in found.items() if value is not None}

    def estimate(self, measure: str) -> Estimate | None:
        """None where no finished run has the measure."""
        return estimate(self.values(measure).values())

    def difference(self, base: Cell, measure: str) -> Difference | None:
        """`paired` of value(self) and value(base)."""
        return paired(self.values(measure), base.values(measure))


def read_experiments(results_dir: Path) -> dict[str, list[Cell]]:
    """The cells of each experiment, softmax first and then by test perplexity.

    An experiment is a folder of records; of a folder of run folders, each of which holds its own
    results.json, it is the outer one.

    Raises:
        ValueError: no record below results_dir, one that is not readable or not a record, or two
            of one cell with the same seed.
    """
    runs = defaultdict(list)
    for path in sorted(results_dir.rglob("*.json")):
        run = _read(path)
        runs[run.experiment].append(run)
    if not runs:
        raise ValueError(
            f"results_dir={results_dir}: holds no record of a run; expected JSON files such as "
            f"ptb-small/softmax-seed0.json, or run folders with {RESULTS_FILE}"
        )
    return {name: _cells(found) for name, found in sorted(runs.items())}


def baseline(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The softmax cell that differs from this one in its head alone, or the only one there is."""
    found = [other for other in cells if other.head == BASELINE]
    alike = [
        other
        for other in found
        if all(key.startswith("head.") for key in keys(cell.config, other.config))
    ]
    return next(iter(alike or (found if len(found) == 1 else [])), None)


def keys(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Keys in which two configs differ and that decide a result, such as model.layers."""
    found = [line.split(":")[0] for line in differences(one, other)]
    return [key for key in found if key not in _IGNORED]


def at(content: dict[str, Any], key: str) -> Any:
    """The value of a key such as model.layers; None where there is none."""
    found: Any = content
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _read(path: Path) -> Run:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        missing = {"config", "status"} - record.keys()
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not a readable record ({error}); move it away") from None
    if missing:
        raise ValueError(
            f"{path}: not the record of a run, which has {', '.join(sorted(missing))}; move it away"
        )
    folder = path.parent.parent if path.name == RESULTS_FILE else path.parent
    return Run(folder.resolve().name, record)


def _cells(runs: list[Run]) -> list[Cell]:
    groups: list[Cell] = []
    for run in runs:
        for place, group in enumerate(groups):
            if group.head == run.head and not keys(group.config, run.config):
                groups[place] = Cell(group.label, [*group.runs, run])
                break
        else:
            groups.append(Cell(run.head, [run]))
    cells = [_checked(_labelled(group, groups)) for group in groups]
    return sorted(cells, key=_order)


def _labelled(cell: Cell, cells: list[Cell]) -> Cell:
    """Named by its head, and by its settings where another cell has the same head."""
    twins = [other for other in cells if other.head == cell.head and other is not cell]
    told = sorted({key for twin in twins for key in keys(cell.config, twin.config)})
    settings = ", ".join(f"{key} {cell.setting(key)}" for key in told)
    runs = sorted(cell.runs, key=lambda run: run.seed)
    return Cell(f"{cell.head} ({settings})" if settings else cell.head, runs)


def _checked(cell: Cell) -> Cell:
    seeds = [run.seed for run in cell.runs]
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(
                f"{cell.runs[0].experiment}: {seeds.count(seed)} records of {cell.label} have seed "
                f"{seed} and the same settings; keep one of them"
            )
    return cell


def _order(cell: Cell) -> tuple[bool, float, str]:
    test = cell.estimate("test_perplexity")
    return cell.head != BASELINE, math.inf if test is None else test.mean, cell.label

"""Synthetic sweeps: records with the answers known, written as a sweep would write them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from glue.plan import make_plan
from glue.sweep import CandidateConfig, SweepConfig
from sparse_attn.engine.command import from_dict
from sparse_attn.engine.config import ScheduleConfig
from sparse_attn.engine.sweep.plan import PlannedRun, SweepPlan
from sparse_attn.engine.sweep.records import FORMAT, Record, read_packed
from sparse_attn.evaluation.metric import METRICS
from sparse_attn.evaluation.tasks import get_task
from tests.engine.sweep.inline import write_record

LABELS = np.random.default_rng(1).permutation([0] * 60 + [1] * 90)


def make_config(**options: Any) -> SweepConfig:
    defaults: dict[str, Any] = {
        "model": "tiny",
        "output_dir": "",
        "tasks": {"RTE": None},
        "mappings": {
            "softmax": CandidateConfig("softmax"),
            "sharp": CandidateConfig("mixed-sparsemax", {"mix": 1.0}, schedule=ramp("mix")),
        },
        "learning_rates": [1e-4],
        "trials": 2,
        "seeds": 3,
    }
    return SweepConfig(**(defaults | options))


def ramp(parameter: str, initial: float = 0.0) -> Any:
    return ScheduleConfig(parameter, initial)


def write_sweep(folder: Path, config: SweepConfig) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, **config.content()}
    (folder / "sweep.json").write_text(json.dumps(content))


def read_plan(folder: Path) -> SweepPlan:
    return plan_of((folder / "sweep.json").read_text())


@functools.cache
def plan_of(sweep: str) -> SweepPlan:
    content = json.loads(sweep)
    names = SweepConfig.__dataclass_fields__
    known = {key: value for key, value in content.items() if key in names}
    return make_plan(from_dict(SweepConfig, {"output_dir": "", **known}))


def planned(folder: Path, mapping: str, stage: Any, index: int, task: str = "RTE") -> PlannedRun:
    """The run of the plan that sweep.json makes; a final one needs every trial of its cell."""
    plan = read_plan(folder)
    runs = plan.finals(read_packed(folder)) if stage == "final" else plan.first
    run = runs[task, mapping][index]
    assert (run.stage, run.index) == (stage, index)
    return run


def add(
    folder: Path,
    mapping: str,
    stage: Any,
    index: int,
    predicted: Any = None,
    labels: Any = None,
    *,
    task: str = "RTE",
    status: Any = "finished",
    error: str | None = None,
    **results: Any,
) -> Record:
    """Write one planned run's record, in place of the one it may have; before a final, its trials.

    Unless it has finished, predictions are not looked at.
    """
    if stage == "final":
        add_trials(folder, mapping, task)
    made = make_results(task, predicted, labels, **results) if status == "finished" else None
    run = planned(folder, mapping, stage, index, task)
    record = run.record(status=status, error=error, results=made)
    write_record(folder, record)
    return record


def add_trials(folder: Path, mapping: str, task: str = "RTE") -> None:
    """Write the trials of a cell that are not there; each gets three of four examples right."""
    done = read_packed(folder)
    predicted = np.where(np.arange(len(LABELS)) % 4, LABELS, 1 - LABELS)
    for run in read_plan(folder).first[task, mapping]:
        if run.hash not in done:
            more: Any = {"task": task, "split": "selection"}
            add(folder, mapping, "trial", run.index, predicted, LABELS, **more)


def make_results(task: str, predicted: Any, labels: Any, **more: Any) -> dict[str, Any]:
    known = get_task(task)
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    metrics = {name: METRICS[name](labels, predicted) for name in known.metrics}
    split = more.pop("split", known.dev_splits[0])
    return {
        "task": task,
        "rows": {"train": 1000, split: len(labels)},
        "metrics": metrics | {"loss": 0.5},
        "main_metric": known.main_metric,
        "score": metrics[known.main_metric],
        "per_epoch": [],
        "log": [{"step": 10, "loss": 0.7}, {"step": 20, "loss": 0.5}],
        "sparsity": {
            split: {"mean": 0.0, "per_layer": [0.0, 0.0], "per_head": [[0.0, 0.0], [0.0, 0.0]]}
        },
        "seconds": {"train": 20.0, "train_cpu": 10.0, "total": 25.0},
        "peak_memory_mib": 500.0,
        "device": "x86_64 CPU, 1 threads",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "predictions": {split: {"predicted": predicted.tolist(), "labels": labels.tolist()}},
    } | more


def guesses(labels: np.ndarray, right: float, seed: int) -> np.ndarray:
    """Binary predictions of which a share `right` is expected to be right."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(len(labels)) < right, labels, 1 - labels)


def fill(folder: Path, config: SweepConfig, right: dict[str, float] | None = None) -> None:
    """Every run of a fair sweep."""
    write_sweep(folder, config)
    for task in config.tasks:
        for place, label in enumerate(config.mappings):
            share = (right or {}).get(label, 0.8)
            for stage, count in (("trial", config.trials), ("final", config.seeds)):
                for index in range(count):
                    predicted = guesses(LABELS, share, 100 * place + index)
                    split = "selection" if stage == "trial" else "dev"
                    add(folder, label, stage, index, predicted, LABELS, task=task, split=split)

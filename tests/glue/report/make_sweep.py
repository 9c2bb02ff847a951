"""Synthetic sweeps: records with the answers known, written as a sweep would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from glue.config import ScheduleConfig
from glue.metric import METRICS
from glue.sweep.config import CandidateConfig, SweepConfig
from glue.sweep.records import FORMAT, Record, hash_of, write_record
from glue.tasks import get_task

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
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    names = [get_task(task).name for task in config.tasks]
    content = {"format": FORMAT, "task_names": names, **config.to_dict()}
    (folder / "sweep.json").write_text(json.dumps(content))


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
    seed: int | None = None,
    rate: float = 1e-4,
    params: dict[str, Any] | None = None,
    error: str | None = None,
    **results: Any,
) -> Record:
    """Write one record; unless it has finished, predictions are not looked at."""
    config = make_run_config(task, seed if seed is not None else index, rate, params or {})
    record = Record(
        task,
        mapping,
        stage,
        index,
        hash_of({"label": mapping, "stage": stage, "index": index, **config}),
        config,
        status,
        error,
        make_results(task, predicted, labels, **results) if status == "finished" else None,
    )
    write_record(folder, record)
    return record


def make_run_config(task: str, seed: int, rate: float, params: dict[str, Any]) -> dict[str, Any]:
    train = {
        "epochs": 3.0,
        "max_steps": None,
        "learning_rate": rate,
        "batch_size": 32,
        "max_length": 128,
        "seed": seed,
        "mixed_precision": "no",
    }
    return {"task": task, "mapping": {"params": params}, "train": train}


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

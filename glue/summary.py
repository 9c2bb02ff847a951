"""Terminal summary of a run or a check: results next to a baseline, and the next command."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Any

from sparse_attn.engine.sweep.records import Record
from sparse_attn.evaluation.tasks import Task
from sparse_attn.evaluation.text_files import column_names
from sparse_attn.reports.table import Table, plain
from sparse_attn.reports.text import NOTHING
from sparse_attn.system.imports import import_options, imported

from .config import MappingConfig, RunConfig, TrainConfig
from .scoring import baseline
from .sweep import BASELINE, SweepConfig


def summary(results: dict[str, Any], config: RunConfig) -> list[str]:
    """Return a table of metrics and exact zeros, and the next command, as lines.

    The baseline always predicts the most frequent label of the evaluated set.
    """
    task = config.task_of_run()
    labels = {split: found["labels"] for split, found in results["predictions"].items()}
    rows = []
    for split, found in labels.items():
        of_split = f"{split}/" if len(labels) > 1 else ""
        nothing_learned = baseline(found, task)
        for name in (*task.metrics, "loss"):
            value, beside = results["metrics"][of_split + name], nothing_learned.get(name)
            text = NOTHING if beside is None else f"{beside:.4f}"
            rows.append([of_split + name, f"{value:.4f}", text])
        zeros = results["sparsity"][split]["mean"]
        rows.append([f"{of_split}exact zeros", f"{zeros:.1%}", NOTHING])
    title = f"{task.name}, {', '.join(f'{len(found)} {split}' for split, found in labels.items())}"
    constant = "constant" if task.regression else "majority class"
    table = Table("", [title, config.mapping.title, constant], rows)
    return [
        *plain(table),
        f"results: {config.output_dir}/results.json",
        _next_command(task, config),
    ]


def next_commands(sweep: SweepConfig, records: list[Record]) -> list[str]:
    """Return, for each mapping, the command that trains a model with its best setting."""
    columns = ",".join(column_names(sweep.text_columns))
    given = {
        **sweep.given_files,
        "text_columns": columns,
        "model": sweep.model,
        "output_dir": "runs/mine",
    }
    defaults = {"mapping": asdict(MappingConfig()), "train": asdict(TrainConfig())}
    lines = []
    for record in records:
        if (record.stage, record.index) != ("final", 0) or record.mapping == BASELINE:
            continue
        settings = {
            name: json.dumps({k: v for k, v in record.config[name].items() if v != plain[k]})
            for name, plain in defaults.items()
        }
        options = {name: value for name, value in (given | settings).items() if value is not None}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        words += import_options(imported())
        lines.append(f"next, for {record.mapping}: sparse-attn glue train {shlex.join(words)}")
    return lines


def _next_command(task: Task, config: RunConfig) -> str:
    if not config.keep_model:
        return "next: sparse-attn glue sweep --help, a fair comparison"
    model = shlex.quote(f"{config.output_dir}/model")
    pair = ' --pair "TEXT"' if len(task.text) == 2 else ""
    modules = "".join(f" {shlex.quote(word)}" for word in import_options(imported()))
    return f'next: sparse-attn inspect {model} "TEXT"{pair}{modules}'

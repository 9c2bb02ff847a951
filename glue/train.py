"""One fine-tuning run on Trainer: from a config to results.json and a model that loads again."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import DataCollatorWithPadding, set_seed

from glue.checkpoints import claim_for_all_processes, remove_checkpoints
from glue.config import RunConfig
from glue.data import load_task, subset
from glue.model import check_length, encode, load_model, load_tokenizer, resolve_model
from glue.scoring import compute_metrics, predictions_of
from glue.tasks import Task, get_task
from glue.trainer import EpochTrainer, training_arguments
from pipeline.files import named, write_json
from pipeline.folders import RESULTS_FILE, check_run_folder
from pipeline.machine import device_name, peak_memory_mib, versions
from sparse_attn import SparsityScheduleCallback

PACKAGES = ("torch", "transformers", "accelerate", "datasets")


@dataclass
class Run:
    """A run whose parts have been made and found to fit together."""

    config: RunConfig
    task: Task
    rows: dict[str, int]
    versions: dict[str, str]
    trainer: EpochTrainer
    checkpoint: Path | None


def prepare(config: RunConfig) -> Run:
    """Read the data, load and patch the model, and only then claim output_dir.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the config, the data or the model.
            Nothing has been written then.
    """
    schedule = config.mapping.schedule_of_run()
    if PartialState().is_main_process:
        check_run_folder(Path(config.output_dir), config.comparable(), config.resume)
    task = get_task(config.task)
    data = subset(load_task(task, config.data_dir), config.train_rows, config.selection)
    set_seed(config.train.seed)
    path = resolve_model(config.model)
    tokenizer = load_tokenizer(path)
    model = load_model(path, task)
    check_length(config.train.max_length, model, tokenizer)
    config.mapping.patch(model)
    encoded = encode(data, tokenizer, config.train.max_length)
    arguments = training_arguments(config)
    metrics = compute_metrics(task)
    checkpoint = claim_for_all_processes(config)
    trainer = EpochTrainer(
        model=model,
        args=arguments,
        train_dataset=encoded["train"],
        eval_dataset={split: rows for split, rows in encoded.items() if split != "train"},
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=metrics,
    )
    if schedule is not None:
        # before TensorBoard's callback, which is to log the value
        trainer.callback_handler.callbacks.insert(0, SparsityScheduleCallback(schedule))
    rows = {split: len(data[split]) for split in data}
    return Run(config, task, rows, versions(*PACKAGES), trainer, checkpoint)


def train(run: Run) -> dict[str, Any]:
    """Fine-tune, evaluate, save the model, write results.json and return what it holds."""
    trainer, folder = run.trainer, Path(run.config.output_dir)
    # dropout of its own in every process, and none of the numbers that the head's start took
    set_seed((run.config.train.seed + trainer.args.process_index) % 2**32)
    started, cpu_started = time.perf_counter(), time.process_time()
    # of what Trainer writes, the TensorBoard log
    with closing(trainer.progress), named(folder):
        output = trainer.train(resume_from_checkpoint=run.checkpoint and str(run.checkpoint))
    cpu_seconds = time.process_time() - cpu_started
    evaluated = {split: evaluate(run, split) for split in trainer.eval_dataset}
    if run.config.keep_model:
        with named(folder / "model"):
            trainer.save_model(str(folder / "model"))
    metrics = {
        _name(name, split, trainer): value
        for split, results in evaluated.items()
        for name, value in results.pop("metrics").items()
    }
    first = next(iter(evaluated))
    results = {
        "task": run.task.name,
        "rows": run.rows,
        "mapping": run.config.mapping.name,
        "metrics": metrics,
        "main_metric": run.task.main_metric,
        "score": metrics[_name(run.task.main_metric, first, trainer)],
        "per_epoch": per_epoch(run),
        "log": training_log(run),
        "sparsity": {split: results.pop("sparsity") for split, results in evaluated.items()},
        "seconds": {
            "train": output.metrics["train_runtime"],
            "train_cpu": cpu_seconds,
            "total": time.perf_counter() - started,
        },
        "examples_per_second": output.metrics["train_samples_per_second"],
        "peak_memory_mib": peak_memory_mib(trainer.args.device),
        "processes": trainer.args.world_size,
        "steps": trainer.state.global_step,
        "resumed_from_step": _step_of(run.checkpoint),
        "seed": run.config.train.seed,
        "device": device_name(trainer.args.device),
        "versions": run.versions,
        "config": run.config.to_dict(),
        "predictions": evaluated,
    }
    if trainer.is_world_process_zero():
        write_json(folder / RESULTS_FILE, results)
        remove_checkpoints(folder)
    return results


def evaluate(run: Run, split: str) -> dict[str, Any]:
    """Metrics and sparsity on a split, and what was predicted for each of its examples."""
    trainer = run.trainer
    output = trainer.predict(trainer.eval_dataset[split], metric_key_prefix=split)
    return {
        "metrics": _task_metrics(output.metrics, split, run.task),
        "sparsity": {
            "mean": trainer.sparsity.mean,
            "per_layer": trainer.sparsity.per_layer,
            "per_head": trainer.sparsity.per_head,
        },
        "predicted": predictions_of(output.predictions, run.task).tolist(),
        "labels": output.label_ids.tolist(),
    }


def per_epoch(run: Run) -> list[dict[str, float]]:
    """Metrics and sparsity of every evaluation during training, one entry an epoch."""
    entries: dict[float, dict[str, float]] = {}
    for line in run.trainer.state.log_history:
        for split in run.trainer.eval_dataset:
            prefix = f"eval_{split}"
            if f"{prefix}_loss" in line:
                entry = entries.setdefault(line["epoch"], {"epoch": line["epoch"]})
                values = _task_metrics(line, prefix, run.task)
                values["sparsity"] = line[f"{prefix}_sparsity"]
                entry |= {_name(name, split, run.trainer): v for name, v in values.items()}
    return list(entries.values())


def training_log(run: Run) -> list[dict[str, float]]:
    """Step, loss on the training set, and the value of the schedule, every ten steps."""
    schedule = run.config.mapping.schedule
    lines = [line for line in run.trainer.state.log_history if "loss" in line]
    scheduled = schedule and f"sparsity/{schedule.parameter}"
    return [
        {"step": line["step"], "loss": line["loss"]}
        | ({schedule.parameter: line[scheduled]} if schedule and scheduled in line else {})
        for line in lines
    ]


def _task_metrics(values: dict[str, float], prefix: str, task: Task) -> dict[str, float]:
    return {name: values[f"{prefix}_{name}"] for name in (*task.metrics, "loss")}


def _name(metric: str, split: str, trainer: EpochTrainer) -> str:
    """`accuracy`, or `dev_matched/accuracy` where there are several splits."""
    return metric if len(trainer.eval_dataset) == 1 else f"{split}/{metric}"


def _step_of(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])

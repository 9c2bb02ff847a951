"""One fine-tuning run with Trainer: from a config to results and a saved model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict
from huggingface_hub.utils import enable_progress_bars
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar

from sparse_attn import SparsitySchedule, SparsityScheduleCallback
from sparse_attn.engine.config import ScheduleConfig
from sparse_attn.engine.sweep.plan import SweepPlan
from sparse_attn.evaluation.data import ROW, load_task
from sparse_attn.evaluation.predictions import predictions_of
from sparse_attn.evaluation.tasks import Task
from sparse_attn.hf.checkpoints import last_complete_checkpoint
from sparse_attn.hf.opening import resolve_model
from sparse_attn.system.files import disk_errors
from sparse_attn.system.machine import device_name, peak_memory_mib, versions

from .config import RunConfig, TrainConfig
from .data import CUT, cut_rows, described, refuse_same_rows, subset
from .model import check_length, encode, load_model, load_tokenizer
from .scoring import compute_metrics
from .sweep import SweepConfig
from .trainer import EpochTrainer, training_arguments

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "accelerate", "datasets")


@dataclass
class Run:
    """A run whose parts have been created and checked."""

    config: RunConfig
    task: Task
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    data: DatasetDict  # token ids
    arguments: TrainingArguments
    metrics: Callable[[EvalPrediction], dict[str, float]]
    schedule: SparsitySchedule | None
    versions: dict[str, str]
    about: list[str]  # lines on labelled files and on rows that are cut

    def perform(self, folder: Path) -> dict[str, Any] | None:
        """Fine-tune, evaluate and save the model.

        Return the content of results.json in the main process, and None in others.
        """
        config = self.config
        checkpoint = last_complete_checkpoint(folder) if config.resume else None
        trainer = self.trainer
        # every process draws other dropout, and none repeats the numbers of the head's start
        set_seed((config.train.seed + trainer.args.process_index) % 2**32)
        started, cpu_started = time.perf_counter(), time.process_time()
        # Trainer writes the TensorBoard log, which may fill the disk
        with closing(trainer.progress), disk_errors(folder):
            output = trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        cpu_seconds = time.process_time() - cpu_started
        evaluated = {split: evaluate(trainer, split, self.task) for split in trainer.eval_dataset}
        if config.keep_model:
            with disk_errors(folder / "model"):
                trainer.save_model(str(folder / "model"))
        metrics = {
            _name(name, split, trainer): value
            for split, results in evaluated.items()
            for name, value in results.pop("metrics").items()
        }
        first = next(iter(evaluated))
        results = {
            "task": self.task.name,
            "rows": {split: len(self.data[split]) for split in self.data},
            CUT: {split: sum(self.data[split][CUT]) for split in self.data},
            "mapping": config.mapping.name,
            "metrics": metrics,
            "main_metric": self.task.main_metric,
            "score": metrics[_name(self.task.main_metric, first, trainer)],
            "per_epoch": per_epoch(trainer, self.task),
            "log": training_log(trainer, config.mapping.schedule),
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
            "resumed_from_step": int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0,
            "seed": config.train.seed,
            "device": device_name(trainer.args.device),
            "versions": self.versions,
            "predictions": evaluated,
        }
        return results if trainer.is_world_process_zero() else None

    @cached_property
    def trainer(self) -> EpochTrainer:
        """Create the Trainer, which makes output_dir; claim the folder first."""
        trainer = EpochTrainer(
            model=self.model,
            args=self.arguments,
            train_dataset=self.data["train"],
            eval_dataset={split: rows for split, rows in self.data.items() if split != "train"},
            data_collator=DataCollatorWithPadding(self.tokenizer),
            processing_class=self.tokenizer,
            compute_metrics=self.metrics,
        )
        if self.schedule is not None:
            # before TensorBoard's callback, so that it logs the new value
            trainer.callback_handler.callbacks.insert(0, SparsityScheduleCallback(self.schedule))
        return trainer


def assemble(config: RunConfig) -> Run:
    """Read the data, load and patch the model; nothing is written.

    Raises:
        ValueError, TypeError, OSError: invalid config, data or model.
    """
    if config.keep_model:  # `check_sweep` warns once for a whole sweep
        warn_of_slow_bf16(config.train)
    # hide the bars of loading and of checkpoints, but show those of downloads
    disable_progress_bar()
    enable_progress_bars()
    schedule = config.mapping.schedule_of_run()
    task = config.task_of_run()
    rows = read_data(config, task)
    data = chosen(config, rows)
    set_seed(config.train.seed)
    path = resolve_model(config.model)
    tokenizer = load_tokenizer(path)
    model = load_model(path, task, config.mapping.name, config.train.dtype)
    max_length = config.train.max_length
    check_length(max_length, model.config, tokenizer)
    config.mapping.patch(model)
    encoded = encode(data, tokenizer, max_length)
    return Run(
        config,
        task,
        model,
        tokenizer,
        encoded,
        training_arguments(config),
        compute_metrics(task),
        schedule,
        versions(*PACKAGES),
        [*([described(task, rows)] if config.files else []), *cut_rows(encoded, max_length)],
    )


def read_data(config: RunConfig, task: Task) -> DatasetDict:
    """Return all rows of the task; raise the errors of `assemble`."""
    data = load_task(task, config.data_dir)
    refuse_same_rows(data, task)
    return data


def chosen(config: RunConfig, data: DatasetDict) -> DatasetDict:
    """Return the rows for training and evaluation; raise the errors of `assemble`."""
    return subset(data, config.train_rows, config.selection, config.limit)


def check_sweep(sweep: SweepConfig, plan: SweepPlan) -> None:
    """Raise, before the first run starts, any error that its mapping, data or model would raise.

    Print what labelled files were taken for, and what they can show.
    """
    warn_of_slow_bf16(sweep.train)
    path, max_length = resolve_model(sweep.model), sweep.train.max_length
    tokenizer = load_tokenizer(path)
    for config in {task: runs[0].config for (task, _), runs in plan.first.items()}.values():
        task = config.task_of_run()
        data = read_data(config, task)
        picked = chosen(config, data)
        model = load_model(path, task)
        check_length(max_length, model.config, tokenizer)
        if config.files:
            print(described(task, data))
            if config.selection and not task.regression:
                rows = len(picked["selection"])
                worth = f"one row is {100 / rows:.1f} points"
                print(f"trials are scored on {rows} training rows, {worth}")
            for line in cut_rows(encode(data, tokenizer, max_length), max_length):
                print(line)
    for (_, label), runs in plan.first.items():
        for run in runs:
            try:
                run.config.mapping.schedule_of_run()
                run.config.mapping.patch(model)
            except (ValueError, TypeError) as error:
                raise ValueError(f"mappings.{label}: {error}") from None


def warn_of_slow_bf16(train: TrainConfig) -> None:
    """Warn if a CPU has no instructions for bfloat16: fifty times float32's time on Zen 3."""
    # private: torch has no public question for bfloat16 on a CPU
    supported = torch.accelerator.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if train.mixed_precision == "bf16" and not supported:
        logger.warning(
            "train.mixed_precision=bf16: this CPU has no instructions for bfloat16 and takes "
            "dozens of times as long as in float32; use --train.mixed_precision no"
        )


def evaluate(trainer: EpochTrainer, split: str, task: Task) -> dict[str, Any]:
    """Return metrics and sparsity of a split, and prediction, label and row of each example."""
    output = trainer.predict(trainer.eval_dataset[split], metric_key_prefix=split)
    return {
        "metrics": _task_metrics(output.metrics, split, task),
        "sparsity": {
            "mean": trainer.sparsity.mean,
            "per_layer": trainer.sparsity.per_layer,
            "per_head": trainer.sparsity.per_head,
        },
        "predicted": predictions_of(output.predictions, task).tolist(),
        "labels": output.label_ids.tolist(),
        "rows": trainer.eval_dataset[split][ROW][:],
    }


def per_epoch(trainer: EpochTrainer, task: Task) -> list[dict[str, float]]:
    """Return metrics and sparsity of every evaluation in training, one entry per epoch."""
    entries: dict[float, dict[str, float]] = {}
    for line in trainer.state.log_history:
        for split in trainer.eval_dataset:
            prefix = f"eval_{split}"
            if f"{prefix}_loss" in line:
                entry = entries.setdefault(line["epoch"], {"epoch": line["epoch"]})
                values = _task_metrics(line, prefix, task)
                values["sparsity"] = line[f"{prefix}_sparsity"]
                entry |= {_name(name, split, trainer): v for name, v in values.items()}
    return list(entries.values())


def training_log(trainer: EpochTrainer, schedule: ScheduleConfig | None) -> list[dict[str, float]]:
    """Return step, training loss and the value of the schedule, every ten steps."""
    lines = [line for line in trainer.state.log_history if "loss" in line]
    scheduled = schedule and f"sparsity/{schedule.parameter}"
    return [
        {"step": line["step"], "loss": line["loss"]}
        | ({schedule.parameter: line[scheduled]} if schedule and scheduled in line else {})
        for line in lines
    ]


def _task_metrics(values: dict[str, float], prefix: str, task: Task) -> dict[str, float]:
    return {name: values[f"{prefix}_{name}"] for name in (*task.metrics, "loss")}


def _name(metric: str, split: str, trainer: EpochTrainer) -> str:
    """Return `accuracy`, or `dev_matched/accuracy` if there are several splits."""
    return metric if len(trainer.eval_dataset) == 1 else f"{split}/{metric}"

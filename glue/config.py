"""The config of a run: a dataclass filled from YAML and the command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from sparse_attn.engine.config import ScheduleConfig, check_fields, valid_seed
from sparse_attn.engine.types import PreTrainedModel, SparsitySchedule
from sparse_attn.evaluation.labelled_files import digest, task_of_files
from sparse_attn.evaluation.tasks import Task, get_task
from sparse_attn.evaluation.text_files import column_names
from sparse_attn.reports.text import listing, plain
from sparse_attn.system.hub import is_hub_id

SAVED = "saved"  # stands for the mappings that a model was saved with


@dataclass(frozen=True)
class MappingConfig:
    """The mapping that replaces softmax in attention.

    Args:
        name: a registered mapping, such as softmax, r-softmax, entmax; for short `--mapping NAME`
            or `--mapping NAME:PARAMETER=VALUE,...`. saved: those of a converted model, as its
            folder has them.
        params: its parameters, such as `--mapping.params.r 0.15`.
        layers: block numbers to patch; all by default.
        learn: names of the parameters to learn, such as `--mapping.learn "[t]"`.
        per: layer or head: one learned value per layer or head; query: the factor of
            scaled-NAME by a learned function of each query.
        schedule: ramps one parameter from `initial` to its value in `params`.
    """

    name: str = "softmax"
    params: dict[str, float | list[float]] = field(default_factory=dict)
    layers: list[int] | None = None
    learn: list[str] = field(default_factory=list)
    per: Literal["layer", "head", "query"] = "layer"
    schedule: ScheduleConfig | None = None

    @property
    def title(self) -> str:
        """Return a one-line description, such as `r-softmax, r 0 to 0.15`."""
        ramp = self.schedule
        from_ = {ramp.parameter: f"{ramp.initial:g} to "} if ramp else {}
        parts = [self.name]
        parts += [f"{key} {from_.get(key, '')}{plain(value)}" for key, value in self.params.items()]
        parts += [f"{name} learned per {self.per}" for name in self.learn]
        parts += ["a factor for each query"] * (self.per == "query")
        if self.layers is not None:
            parts.append(f"layers {listing([str(layer) for layer in self.layers])}")
        return ", ".join(parts)

    def patch(self, model: PreTrainedModel) -> None:
        """Call `patch_model` with these values; raise the same errors."""
        from sparse_attn import patch_model

        if self.name == SAVED:
            return
        parameters: dict[str, Any] = dict(self.params)
        patch_model(
            model, self.name, layers=self.layers, learn=self.learn, per=self.per, **parameters
        )

    def schedule_of_run(self) -> SparsitySchedule | None:
        """Return the schedule, with both ends checked against the range of the parameter.

        Raises:
            ValueError, TypeError: invalid mapping or schedule.
        """
        from sparse_attn import Mapping

        if self.name == SAVED:
            if self != MappingConfig(SAVED):
                raise ValueError(f"mapping.name={SAVED}: takes no other options; leave them out")
            return None
        parameters: dict[str, Any] = dict(self.params)
        mapping = Mapping(self.name, **parameters)
        if self.schedule is None:
            return None
        return self.schedule.of(mapping, self.learn, "mapping")


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Args:
        epochs: passes over the training set.
        max_steps: stop after this many steps; overrides epochs.
        learning_rate: peak of AdamW's learning rate, linear to 0.
        batch_size: examples per device and step.
        max_length: truncate inputs to this many tokens.
        warmup_ratio: fraction of the steps for learning rate warm-up.
        weight_decay: of AdamW.
        seed: for the head's initial weights, the order of the data and dropout.
        mixed_precision: no, bf16 or fp16.
        dtype: of the weights in training and in the saved model: float32, or auto for that of the
            checkpoint, 16 bits for most of the hub's.
    """

    epochs: float = 3.0
    max_steps: int | None = None
    learning_rate: float = 2e-5
    batch_size: int = 32
    max_length: int = 128
    warmup_ratio: float = 0.0
    weight_decay: float = 0.0
    seed: int = 0
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    dtype: Literal["float32", "auto"] = "float32"

    def __post_init__(self) -> None:
        check_fields(
            self,
            "train",
            epochs=(0 < self.epochs < float("inf"), "a finite number above 0"),
            counts=("max_steps", "batch_size"),
            learning_rate=(0 < self.learning_rate < float("inf"), "a finite number above 0"),
            max_length=(self.max_length > 2, "at least 3"),
            warmup_ratio=(0 <= self.warmup_ratio < 1, "a number in [0, 1)"),
            weight_decay=(0 <= self.weight_decay < float("inf"), "a finite number >= 0"),
            seed=valid_seed(self.seed),
        )


@dataclass(frozen=True, kw_only=True)
class LabelledFiles:
    """Your labelled files.

    Args:
        train_file: your .csv, .tsv, .json or .jsonl file, with an example in each row.
        validation_file: another one to evaluate on; by default a tenth of train_file is held out.
        text_columns: the one or two columns with the texts, such as premise,hypothesis.
        label_column: the column with the labels, or with scores that have decimals.
    """

    train_file: str | None = None
    validation_file: str | None = None
    text_columns: str | list[str] | None = None
    label_column: str | None = None

    def check_source(self, key: str) -> None:
        """Raise ValueError unless either train_file or the field `key` names what to train on."""
        if self.train_file is None:
            for name in FILES:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}={getattr(self, name)!r}: needs train_file")
            if getattr(self, key) is None:
                raise ValueError(f"{key}: missing; or name your labelled file as train_file")
            return
        for name in (key, "data_dir"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: not beside train_file; leave one of them out"
                )

    @property
    def given_files(self) -> dict[str, Any]:
        """The fields of this class, as arguments of a sweep or a run."""
        return {name: getattr(self, name) for name in FILES}

    @property
    def files(self) -> tuple[Path, ...]:
        """The labelled files: none, one to train on, or another one to evaluate on too."""
        given = (self.train_file, self.validation_file)
        return tuple(Path(file) for file in given if file is not None)

    def task_of_files(self) -> Task | None:
        """Return the task of the labelled files, None without any; raise as `task_of_files`."""
        if not self.files:
            return None
        return task_of_files(self.files, column_names(self.text_columns), self.label_column)


FILES = tuple(field.name for field in fields(LabelledFiles))
# fields that may differ between a run and its continuation: places, and what is kept; labelled
# files count by their content
FREE = ("output_dir", "data_dir", "resume", "keep_model", "report_to", *FILES)


def recorded(config: Any, free: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a run or a sweep that identify it, without `free` ones.

    A field that older records lack is left out at its default, so that their hashes stay valid.
    """
    content = {key: value for key, value in asdict(config).items() if key not in free}
    for name in ("limit", *FILES):
        if name in content and content[name] is None:
            del content[name]
    if content["train"]["dtype"] == TrainConfig.dtype:
        del content["train"]["dtype"]
    return content


@dataclass(frozen=True, kw_only=True)
class RunConfig(LabelledFiles):
    """One fine-tuning run.

    Args:
        task: one of GLUE's nine (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI), or a YAML
            file that describes your own; not beside train_file.
        model: hub id, folder, or pkg://package/folder for weights in an installed package.
        output_dir: where results.json, the model, checkpoints and the TensorBoard log go.
        data_dir: folder of the GLUE download (RTE/train.tsv and so on); the hub by default.
        train_rows: train on this many rows, the same in every run; all by default.
        selection: fraction of the training rows, the same in every run, to hold out and evaluate
            instead of the dev set, which is then not used.
        limit: smoke run with at most this many rows per split.
        evaluate: epoch (after every epoch and at the end) or end.
        keep_model: write the final model, the logs of report_to, and checkpoints until the run has
            finished.
        report_to: Trainer's trackers, such as tensorboard, wandb, mlflow or none; several in
            brackets.
        resume: continue the interrupted run in output_dir.
        mapping: the mapping that replaces softmax.
        train: how to train.
    """

    task: str | None = None
    model: str
    output_dir: str
    data_dir: str | None = None
    train_rows: int | None = None
    selection: float | None = None
    limit: int | None = None
    evaluate: Literal["epoch", "end"] = "epoch"
    keep_model: bool = True
    report_to: str | list[str] = "tensorboard"
    resume: bool = False
    mapping: MappingConfig = field(default_factory=MappingConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        self.check_source("task")
        fits = self.selection is None or 0 < self.selection < 1
        check_fields(
            self,
            selection=(fits, "a share in (0, 1), such as 0.1"),
            limit=(self.limit is None or self.limit > 0, "at least 1"),
        )

    @property
    def uses_hub(self) -> bool:
        """Whether data or model come from the hub."""
        return is_hub_id(self.model) or (self.data_dir is None and self.task_of_run().root is None)

    def task_of_run(self) -> Task:
        """Return the task; raise the errors of `get_task` and `task_of_files`."""
        return self.task_of_files() or get_task(self.task or "")

    def comparable(self) -> dict[str, Any]:
        """Return the settings that determine the result; equal ones mean the same run."""
        content = recorded(self, FREE)
        task = self.task_of_run()
        if task.root is not None:
            # identify a custom task by its content, not its path
            own = {key: value for key, value in asdict(task).items() if key != "root"}
            content["task"] = json.loads(json.dumps(own))
        if self.files:
            content["sha256"] = [digest(file) for file in self.files]
        return content

"""A sweep: tasks x mappings x hyper-parameters x seeds under one of two protocols."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Literal

from sparse_attn.engine.config import ScheduleConfig, check_fields, check_labels, check_rates
from sparse_attn.evaluation.tasks import Task, get_task
from sparse_attn.system.hub import is_hub_id

from .config import LabelledFiles, MappingConfig, TrainConfig, recorded

BASELINE = "softmax"
# fields that may differ between a sweep and its continuation
FREE = ("output_dir", "data_dir")


@dataclass(frozen=True)
class TaskConfig:
    """Settings of one task of a sweep.

    Args:
        epochs: replaces train.epochs.
        train_rows: train on this many rows, the same in every run; all by default.
    """

    epochs: float | None = None
    train_rows: int | None = None


@dataclass(frozen=True)
class CandidateConfig:
    """One mapping of a sweep, with the parameter values to try.

    Args:
        name: a registered mapping, or mixed-NAME, which can be ramped by its parameter mix.
        params: its parameters; a list holds values to try, each a number, or a list with one number
            per head.
        layers: block numbers to patch; all by default.
        learn: names of the parameters to learn.
        per: layer or head: one learned value per layer or head; query: the factor of
            scaled-NAME by a learned function of each query.
        schedule: ramps one parameter from `initial` to the value tried.
    """

    name: str
    params: dict[str, float | list[float | list[float]]] = field(default_factory=dict)
    layers: list[int] | None = None
    learn: list[str] = field(default_factory=list)
    per: Literal["layer", "head", "query"] = "layer"
    schedule: ScheduleConfig | None = None

    @property
    def values(self) -> dict[str, list[float | list[float]]]:
        """Return the values to try for each parameter."""
        return {
            name: value if isinstance(value, list) else [value]
            for name, value in self.params.items()
        }

    def with_params(self, params: dict[str, Any]) -> MappingConfig:
        """Return the mapping with one value for each parameter."""
        return MappingConfig(self.name, params, self.layers, self.learn, self.per, self.schedule)

    @property
    def combinations(self) -> list[dict[str, Any]]:
        """Return all combinations of the parameters' values."""
        products = itertools.product(*self.values.values())
        return [dict(zip(self.values, values, strict=True)) for values in products]

    @property
    def is_ramped(self) -> bool:
        """Return whether it is ramped in: softmax, a moving schedule or a learned map."""
        from sparse_attn.mappings import get_spec

        if self.schedule is None:
            return self.name == BASELINE or get_spec(self.name).weights is not None
        targets = [self.with_params(p).schedule_of_run() for p in self.combinations]
        return all(target is not None and target.initial != target.final for target in targets)


@dataclass(frozen=True, kw_only=True)
class SweepConfig(LabelledFiles):
    """A sweep.

    Args:
        model: hub id, folder, or pkg://package/folder for weights in an installed package.
        output_dir: folder for sweep.json and the runs.
        tasks: name (or YAML file) of each task, with its own settings; not beside train_file.
        mappings: a label for each mapping, and its settings. `softmax` is the baseline.
        learning_rates: values to try.
        protocol: fair: every mapping is ramped and gets the same number of trials on held-out
            training rows; its best setting is retrained on the whole training set with `seeds`
            seeds, the same for every mapping, and evaluated once on the dev set. paper (Balazy et
            al. 2023): every learning rate with every parameter value, with the best chosen on the
            dev set it is reported on.
        trials: per task and mapping, under `fair`. Trial k has the same learning rate and seed for
            every mapping; learning rates and parameter values take turns.
        seeds: runs of the best setting under `fair`, of the whole grid under `paper`.
        selection: fraction of the training set to hold out for the trials.
        limit: smoke run with at most this many rows per split.
        data_dir: folder of the GLUE download (RTE/train.tsv and so on); the hub by default.
        train: how to train; the sweep sets learning_rate and seed.
    """

    model: str
    output_dir: str
    tasks: dict[str, TaskConfig | None] | None = None
    mappings: dict[str, CandidateConfig]
    learning_rates: list[float]
    protocol: Literal["fair", "paper"] = "fair"
    trials: int = 5
    seeds: int = 5
    selection: float = 0.1
    limit: int | None = None
    data_dir: str | None = None
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        self.check_source("tasks")
        self._check_numbers()
        names = self.task_names
        if len(set(names)) < len(names):
            raise ValueError(f"tasks: expected each once, got {', '.join(names)}")
        check_labels((*names, *self.mappings))
        if self.mappings.get(BASELINE) != CandidateConfig(BASELINE):
            raise ValueError(
                f"mappings: expected plain {BASELINE!r} among them, the baseline, got "
                f"{', '.join(self.mappings)}"
            )
        for label, candidate in self.mappings.items():
            self._check_candidate(label, candidate)

    def _check_numbers(self) -> None:
        check_rates(self, seed="seeds")
        check_fields(
            self,
            tasks=(self.tasks != {}, "at least one"),
            trials=(
                self.protocol == "paper" or self.trials >= len(self.learning_rates),
                f"at least one for each of the {len(self.learning_rates)} learning_rates",
            ),
            selection=(0 < self.selection < 1, "a share in (0, 1), such as 0.1"),
            limit=(self.limit is None or self.limit > 0, "at least 1"),
        )

    def _check_candidate(self, label: str, candidate: CandidateConfig) -> None:
        try:
            for name, values in candidate.values.items():
                if not values or any(values.count(value) > 1 for value in values):
                    raise ValueError(f"params.{name}={values}: expected values, each once")
            combinations = candidate.combinations
            for params in combinations:
                candidate.with_params(params).schedule_of_run()
            if self.protocol == "paper":
                return
            if len(combinations) > self.trials:
                raise ValueError(
                    f"params: {len(combinations)} combinations in {self.trials} trials, so some "
                    "would never be tried; use more trials or fewer values"
                )
            if not candidate.is_ramped:
                from sparse_attn.mappings.variants import MIXED, SCALED

                name = candidate.name.removeprefix(MIXED).removeprefix(SCALED)
                raise ValueError(
                    "the fair protocol ramps every mapping; give it a schedule that moves, such as "
                    "{parameter: r, initial: 0.0} for r-softmax, or {parameter: mix, initial: 0.0} "
                    f"for {MIXED}{name} with params.mix 1.0"
                )
        except (ValueError, TypeError) as error:
            raise ValueError(f"mappings.{label}: {error}") from None

    @property
    def uses_hub(self) -> bool:
        """Whether data or model come from the hub."""
        from_files = self.data_dir is not None or all(task.root for task in self._tasks)
        return is_hub_id(self.model) or not from_files

    @property
    def task_names(self) -> list[str]:
        """Return the names of the tasks; a task from a YAML file is not named by its path."""
        return [task.name for task in self._tasks]

    @property
    def _tasks(self) -> list[Task]:
        labelled = self.task_of_files()
        return [labelled] if labelled else [get_task(task) for task in self.tasks or ()]

    def content(self) -> dict[str, Any]:
        """Return the content of sweep.json: the settings that a continued sweep must keep."""
        return {"task_names": self.task_names, **recorded(self, FREE)}

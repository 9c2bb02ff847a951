"""Configs of runs and sweeps: dataclasses filled from YAML and the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from experiments.multilabel.data.config import KINDS, DataConfig
from sparse_attn.engine.config import (
    ScheduleConfig,
    check_baseline,
    check_fields,
    check_labels,
    check_rates,
    valid_seed,
)
from sparse_attn.engine.types import SparsitySchedule

# may change on resume: paths, what to keep, how to read
FREE = ("output_dir", "resume", "keep_model", "data_dir", "workers")
# not in every record: left out at these values
ADDED = {"count": "true", "count_weight": 1.0, "stop_after": None, "standardize": True}
BASELINE = "softmax"
SIGMOID = "sigmoid"


@dataclass(frozen=True)
class MethodConfig:
    """A mapping as the output of a classifier.

    Args:
        mapping: a registered mapping, such as softmax, sparsemax, r-softmax; or sigmoid: a
            sigmoid per label with binary cross entropy.
        params: mapping parameters, such as `--method.params.r 0.5`.
        loss: one of the mapping's losses, such as nll or sparsegen-hinge; the first by default.
        sparsity: fixed: by the parameters; predicted: r (r-softmax) or t (t-softmax) is predicted
            from each row.
        count: the number of labels from which the loss takes a predicted r; the records of
            synthetic-rates hold others than "true", which this version reads but does not train.
        count_weight: weight of the loss of the predicted number; likewise, only 1 is trained.
        learn: names of parameters to learn.
        schedule: ramp one parameter from `initial` to its value in `params`.
        thresholds: a label applies if p exceeds the best of these on the validation set; by
            default, the threshold of the head, which is 0 for mappings with exact zeros.
    """

    mapping: str = "softmax"
    params: dict[str, float] = field(default_factory=dict)
    loss: str | None = None
    sparsity: Literal["fixed", "predicted"] = "fixed"
    count: str = "true"
    count_weight: float = 1.0
    learn: list[str] = field(default_factory=list)
    schedule: ScheduleConfig | None = None
    thresholds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        outside = [value for value in self.thresholds if not 0 < value < 1]
        if outside or len(set(self.thresholds)) < len(self.thresholds):
            raise ValueError(
                f"method.thresholds={self.thresholds}: expected values in (0, 1), each once"
            )
        own = (self.params, self.loss, self.learn, self.schedule, self.sparsity != "fixed")
        if self.mapping == SIGMOID and any(own):
            raise ValueError(
                "method.mapping=sigmoid: has no params, loss, learn, schedule or predicted "
                "sparsity; leave them out"
            )

    def sparsity_schedule(self) -> SparsitySchedule | None:
        """The schedule, with its ends checked against the range of the parameter.

        Raises:
            ValueError, TypeError: invalid mapping or schedule.
        """
        from sparse_attn import Mapping

        if self.schedule is None:
            return None
        parameters: dict[str, Any] = dict(self.params)
        return self.schedule.of(Mapping(self.mapping, **parameters), self.learn, "method")


@dataclass(frozen=True)
class TrainConfig:
    """Training by Adam at a constant learning rate; keeps the epoch with the best validation F1.

    Args:
        epochs: passes over the training set, at most.
        stop_after: stop after this many epochs without a better validation F1; never by default.
        learning_rate: learning rate of Adam.
        batch_size: rows per step.
        seed: seed of the initial weights, the row order, dropout and synthetic rows.
        workers: processes that load the rows; 0 to load in the main process.
        device: auto (a GPU if available), cpu or cuda.
    """

    epochs: int = 100
    stop_after: int | None = None
    learning_rate: float = 1e-3
    batch_size: int = 128
    seed: int = 0
    workers: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        check_fields(
            self,
            "train",
            counts=("epochs", "stop_after", "batch_size"),
            learning_rate=(0 < self.learning_rate < float("inf"), "a finite number above 0"),
            seed=valid_seed(self.seed),
            workers=(self.workers >= 0, "0 or more"),
        )


@dataclass(frozen=True, kw_only=True)
class MultilabelRunConfig(DataConfig):
    """A run of one method on one data set.

    Args:
        output_dir: folder for results.json and the model.
        method: the output layer, its loss and thresholds.
        train: how to train.
        keep_model: save the weights of the best epoch, and a checkpoint during training.
        resume: continue the interrupted run in output_dir.
    """

    output_dir: str
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    keep_model: bool = True
    resume: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train.stop_after is not None and self.method.schedule is not None:
            raise ValueError(
                f"train.stop_after={self.train.stop_after}: expected none beside method.schedule, "
                "whose ramp would not end"
            )

    def comparable(self) -> dict[str, Any]:
        """Return the settings that determine the result; equal ones mean the same run."""
        content, sections = asdict(self), (*KINDS, "method", "train")
        used = {key: _comparable(content[key]) for key in sections if content[key] is not None}
        # "text": part of the hash of committed records, from when texts were a third kind
        return _comparable(content | used | {"text": None})


@dataclass(frozen=True)
class MultilabelSweepConfig:
    """Methods x data sets x seeds.

    With several learning rates, each method tries all of them on each data set on a separate seed,
    and the final runs use the one with the best validation F1.

    Args:
        output_dir: folder for sweep.json and the runs.
        data: the data sets, by label.
        methods: the methods, by label; `softmax` is the baseline.
        learning_rates: learning rates of Adam to try.
        seeds: final runs per method and data set, with seeds 0, 1, ...
        train: how to train; the sweep sets learning_rate and seed.
    """

    output_dir: str
    data: dict[str, DataConfig]
    methods: dict[str, MethodConfig]
    learning_rates: list[float] = field(default_factory=lambda: [1e-3])
    seeds: int = 5
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        check_fields(self, data=(bool(self.data), "at least one"))
        check_rates(self, seed="seeds")
        check_labels((*self.data, *self.methods))
        check_baseline("methods", self.methods, BASELINE)

    @property
    def uses_hub(self) -> bool:
        """Whether data or networks are downloaded from the hub."""
        return any(data.uses_hub for data in self.data.values())

    def run(self, data: str, method: str, rate: float, seed: int) -> MultilabelRunConfig:
        """One run of the sweep; only its record is kept."""
        kinds = {kind: getattr(self.data[data], kind) for kind in KINDS}
        train = replace(self.train, learning_rate=rate, seed=seed)
        return MultilabelRunConfig(
            output_dir="", method=self.methods[method], train=train, keep_model=False, **kinds
        )

    def content(self) -> dict[str, Any]:
        """Return the content of sweep.json: the settings that determine the results."""
        content = asdict(self)
        for data in content["data"].values():
            data.update((kind, _comparable(data[kind])) for kind in KINDS if data[kind] is not None)
        methods = {label: _comparable(method) for label, method in content["methods"].items()}
        return _comparable(content) | {"methods": methods, "train": _comparable(content["train"])}


def _comparable(section: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a section that determine the result."""
    return {
        key: value
        for key, value in section.items()
        if key not in FREE and (key not in ADDED or value != ADDED[key])
    }

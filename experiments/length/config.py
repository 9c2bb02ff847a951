"""Configs of runs and sweeps: dataclasses filled from YAML and the command line."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from sparse_attn.engine.config import check_fields, valid_seed

if TYPE_CHECKING:
    from experiments.length.task import Task

FREE = ("output_dir", "device", "resume")  # may change on resume


def recorded(config: Any) -> dict[str, Any]:
    """Return the fields of a run or a sweep that identify it.

    Older records are all of recall and have no field `task`, so it is left out there.
    """
    content = {key: value for key, value in asdict(config).items() if key not in FREE}
    if content["task"] == "recall":
        del content["task"]
    return content


@dataclass(frozen=True)
class AttentionConfig:
    """The attention function: arguments of `patch_model`.

    Args:
        name: registered name.
        params: values of its parameters.
        learn: names of the parameters to learn.
        per: layer, head or query.
    """

    name: str = "softmax"
    params: dict[str, float] = field(default_factory=dict)
    learn: list[str] = field(default_factory=list)
    per: Literal["layer", "head", "query"] = "layer"


@dataclass(frozen=True)
class SetupConfig:
    """Settings that all attention functions share.

    Args:
        task: recall, or flip-flop.
        train_length: tokens of a text in training; with flip-flop of the longest, and the shortest
            has half as many.
        lengths: tokens of the texts to test on.
        symbols: of the alphabet.
        layers: of the model, alternating: one with positions and a window, one without positions.
        hidden_size: of the model.
        heads: of a layer.
        window: keys of a query in layers with positions.
        steps: of training.
        batch: texts of a step.
        learning_rate: its peak, after a twentieth of the steps; then it falls linearly.
        texts: number of texts to test on at each length.
    """

    task: Literal["recall", "flip-flop"] = "recall"
    train_length: int = 64
    lengths: list[int] = field(default_factory=lambda: [64, 128, 256, 512, 1024])
    symbols: int = 32
    layers: int = 2
    hidden_size: int = 64
    heads: int = 4
    window: int = 8
    steps: int = 2000
    batch: int = 64
    learning_rate: float = 3e-3
    texts: int = 200

    def __post_init__(self) -> None:
        task = self.get_task()

        def fits(length: int) -> bool:
            return length >= task.least_length and length % task.unit == 0

        fitting = f"multiples of {task.unit} from {task.least_length} on"
        different = 0 < len(self.lengths) == len(set(self.lengths))
        longest = max(self.train_length, *self.lengths, 0)
        least = task.least_symbols(longest)
        check_fields(self, counts=("heads", "window", "steps", "batch", "texts"))
        check_fields(
            self,
            train_length=(fits(self.train_length), f"one of the {fitting}"),
            lengths=(different and all(map(fits, self.lengths)), f"different {fitting}"),
            symbols=(self.symbols >= least, f"at least {least}, for texts of {longest} tokens"),
            layers=(self.layers > 0 and self.layers % 2 == 0, "an even number above 0"),
            hidden_size=(
                self.hidden_size > 0 and self.hidden_size % (2 * self.heads) == 0,
                f"a multiple of {2 * self.heads}, as there are {self.heads} heads",
            ),
            learning_rate=(0 < self.learning_rate < math.inf, "a finite number above 0"),
        )

    def get_task(self) -> Task:
        """Return the task."""
        from experiments.length.flip_flop import FLIP_FLOP
        from experiments.length.recall import RECALL

        return {"recall": RECALL, "flip-flop": FLIP_FLOP}[self.task]


@dataclass(frozen=True, kw_only=True)
class LengthRunConfig(SetupConfig):
    """One model, trained on short texts and tested on long ones.

    Args:
        output_dir: where results.json goes.
        attention: the attention function.
        seed: of the initial weights and of the texts.
        device: auto (a GPU if available), cpu or cuda.
        resume: restart the interrupted run in output_dir.
    """

    output_dir: str
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    resume: bool = False

    def __post_init__(self) -> None:
        from sparse_attn.mappings import get_spec

        super().__post_init__()
        get_spec(self.attention.name)
        check_fields(self, seed=valid_seed(self.seed))

    def comparable(self) -> dict[str, Any]:
        """Return the settings that determine the result; equal ones mean the same run."""
        return recorded(self)


@dataclass(frozen=True, kw_only=True)
class LengthSweepConfig(SetupConfig):
    """Attention functions x seeds with the same model, texts, steps and learning rate.

    Args:
        output_dir: folder for sweep.json and the runs.
        attentions: a label, then the attention function; one has the label softmax.
        seeds: runs of each, with seeds first_seed, first_seed + 1, ...
        first_seed: 0, or 1000 for runs that choose a setting.
        device: auto (a GPU if available), cpu or cuda.
    """

    output_dir: str
    attentions: dict[str, AttentionConfig]
    seeds: int = 3
    first_seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        from sparse_attn.engine.config import check_baseline, check_labels

        super().__post_init__()
        check_baseline("attentions", self.attentions, "softmax")
        check_labels(self.attentions)
        check_fields(self, counts=("seeds",))
        self.runs()  # validates the settings

    def content(self) -> dict[str, Any]:
        """Return the content of sweep.json: the settings that a continued sweep must keep."""
        return recorded(self)

    def runs(self) -> dict[tuple[str, str], list[LengthRunConfig]]:
        """Return the runs of each attention function."""
        shared = {name: getattr(self, name) for name in SetupConfig.__dataclass_fields__}
        run = LengthRunConfig(output_dir="", device=self.device, **shared)
        return {
            (self.task, label): [
                replace(run, attention=attention, seed=self.first_seed + k)
                for k in range(self.seeds)
            ]
            for label, attention in self.attentions.items()
        }

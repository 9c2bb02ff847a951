"""What a sweep is: losses, the learning rates that each tries, and how many runs then count."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from experiments.images.config import DataConfig, NetworkConfig, TrainConfig
from pipeline.config import check_labels, check_left_alone
from pipeline.sweep.config import FIRST_TRIAL_SEED


@dataclass(frozen=True)
class SweptLoss:
    """One loss of a sweep.

    Args:
        name: as `loss.name` of a run.
        learning_rates: those to try; every loss has as many.
        params: of the mapping, or of bouchard.
        learn: names of the mapping's parameters to learn.
    """

    name: str
    learning_rates: list[float]
    params: dict[str, float | str] = field(default_factory=dict)
    learn: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SweepConfig:
    """A sweep: for each loss a trial of every learning rate, then `runs` runs of the best one.

    Trials have a seed, and so a split, of their own, do not look at the test images, and are judged
    on the validation images. Run k has the same split, first weights and order of images for every
    loss.

    Args:
        output_dir: where sweep.json and one record a run go.
        losses: a label for each loss, and what it is.
        runs: of the best learning rate, with seeds 0, 1, ...
        data: which images.
        network: the network.
        train: how to train; learning_rate and seed are those of the sweep.
        device: auto, cpu or cuda.
    """

    output_dir: str
    losses: dict[str, SweptLoss]
    runs: int
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        if not 1 <= self.runs <= FIRST_TRIAL_SEED:
            raise ValueError(
                f"runs={self.runs}: expected a whole number in [1, {FIRST_TRIAL_SEED}]"
            )
        if not self.losses:
            raise ValueError("losses: expected at least one, got none")
        check_labels(self.losses)
        for label, loss in self.losses.items():
            rates = loss.learning_rates
            if not rates or len(set(rates)) < len(rates):
                raise ValueError(
                    f"losses.{label}.learning_rates={rates}: expected at least one, each once"
                )
        counts = {label: len(loss.learning_rates) for label, loss in self.losses.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"losses: expected as many learning_rates for each, got {counts}; the more a loss "
                "tries, the better it looks"
            )
        check_left_alone(self.train, "train", learning_rate="losses.*.learning_rates", seed="runs")

    @property
    def uses_hub(self) -> bool:
        """Whether the images come from the hub."""
        return self.data.data_dir is None

    def content(self) -> dict[str, Any]:
        """What sweep.json holds: all but what may differ between a sweep and its continuation."""
        content = asdict(self)
        for free in ("output_dir", "device"):
            del content[free]
        del content["data"]["data_dir"]
        return content

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> SweepConfig:
        """The config that `content` describes, with no folder."""
        return cls(
            output_dir="",
            losses={label: SweptLoss(**loss) for label, loss in content["losses"].items()},
            runs=content["runs"],
            data=DataConfig(**content["data"]),
            network=NetworkConfig(**content["network"]),
            train=TrainConfig(**content["train"]),
        )

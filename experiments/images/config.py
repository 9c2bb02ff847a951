"""Configs of runs and sweeps: dataclasses filled from YAML and the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from sparse_attn.engine.config import check_fields, check_labels, check_left_alone, valid_seed
from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED

INF = float("inf")
Name = Literal["mnist", "cifar10", "cifar100"]
# may change on resume
FREE = ("output_dir", "device", "resume")
CLASSES: dict[str, int] = {"mnist": 10, "cifar10": 10, "cifar100": 100}


@dataclass(frozen=True)
class DataConfig:
    """The images and their split.

    Args:
        name: mnist, cifar10 or cifar100.
        data_dir: folder with the files as distributed; the hub by default.
        split: random: all available images, shuffled and split by the seed of the run;
            official: keep the test set as distributed.
        train: training images; the rest by default.
        validation: validation images, for early stopping and the learning rate.
        test: test images of a random split.
    """

    name: Name = "mnist"
    data_dir: str | None = None
    split: Literal["random", "official"] = "random"
    train: int | None = None
    validation: int = 10_000
    test: int = 10_000

    def __post_init__(self) -> None:
        check_fields(self, "data", counts=("train", "validation", "test"))


@dataclass(frozen=True)
class LossConfig:
    """The training loss.

    Args:
        name: mse, bouchard (an upper bound of -log softmax), or a registered mapping, such as
            softmax, softmax-abs, spherical-softmax, taylor-softmax (trained by -log p), sparsemax
            or entmax (by their own loss).
        params: mapping parameters, such as `--loss.params.eps 0.1`; for bouchard `xi` (shared,
            per_class, or a fixed number) and `alpha` (optimal by default).
        learn: names of the mapping's parameters to learn.
    """

    name: str = "softmax"
    params: dict[str, float | str] = field(default_factory=dict)
    learn: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NetworkConfig:
    """The network of the data set: two convolutions for MNIST, thirteen for CIFAR.

    Args:
        widths: maps of both convolutions and hidden units (MNIST; 30, 60, 500 by default), or
            maps of the four stages (CIFAR; 64, 128, 256, 512 by default).
        output_std: standard deviation of the initial output weights; must be above 0 for even
            mappings, which have no gradient at 0.
    """

    widths: list[int] | None = None
    output_std: float = 0.01

    def __post_init__(self) -> None:
        check_fields(
            self,
            "network",
            widths=(self.widths is None or min(self.widths, default=0) > 0, "numbers above 0"),
            output_std=(0 <= self.output_std < INF, "a finite number from 0 on"),
        )


@dataclass(frozen=True)
class TrainConfig:
    """Training by SGD with Nesterov momentum.

    Args:
        epochs: at most this many passes over the training images.
        learning_rate: initial learning rate.
        batch_size: images per step.
        momentum: Nesterov momentum; 0 disables it.
        weight_decay: L2 penalty on all parameters.
        flip: mirror each training image with probability 1/2.
        patience: halve the learning rate after this many epochs without a better validation score.
        stop_after: stop after this many epochs without a better validation score.
        seed: seed of the split, the initial weights and the image order.
    """

    epochs: int = 100
    learning_rate: float = 0.05
    batch_size: int = 200
    momentum: float = 0.9
    weight_decay: float = 0.0
    flip: bool = False
    patience: int = 5
    stop_after: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(
            self,
            "train",
            counts=("epochs", "batch_size", "patience", "stop_after"),
            learning_rate=(0 < self.learning_rate < INF, "a finite number above 0"),
            momentum=(0 <= self.momentum < 1, "a number in [0, 1)"),
            weight_decay=(0 <= self.weight_decay < INF, "a finite number from 0 on"),
            seed=valid_seed(self.seed),
        )


@dataclass(frozen=True, kw_only=True)
class SetupConfig:
    """Settings shared by the runs of a sweep.

    Args:
        data: the images and their split.
        network: the network.
        train: how to train; a sweep sets learning_rate and seed itself.
        device: auto, cpu or cuda.
    """

    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @property
    def uses_hub(self) -> bool:
        """Whether images are downloaded from the hub."""
        return self.data.data_dir is None

    def content(self) -> dict[str, Any]:
        """Return the settings that determine the results, without paths."""
        content = {key: value for key, value in asdict(self).items() if key not in FREE}
        del content["data"]["data_dir"]
        return content


@dataclass(frozen=True)
class ImageRunConfig(SetupConfig):
    """One training run.

    Args:
        output_dir: folder for results.json, the best weights and the checkpoint.
        loss: the training loss.
        test: evaluate on the test images at the end.
        resume: continue the interrupted run in output_dir.
    """

    output_dir: str
    loss: LossConfig = field(default_factory=LossConfig)
    test: bool = True
    resume: bool = False

    def comparable(self) -> dict[str, Any]:
        """Return the settings that determine the result; equal ones mean the same run."""
        return self.content()


@dataclass(frozen=True)
class SweptLoss:
    """One loss of a sweep.

    Args:
        name: as `loss.name` of a run.
        learning_rates: learning rates to try; the same number for every loss.
        params: parameters of the mapping or of bouchard.
        learn: names of the mapping's parameters to learn.
    """

    name: str
    learning_rates: list[float]
    params: dict[str, float | str] = field(default_factory=dict)
    learn: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ImageSweepConfig(SetupConfig):
    """A sweep: every learning rate for each loss, then `runs` final runs with the best one.

    Trials use a separate seed and split, and are scored on validation images; they never see the
    test images. Run k has the same split, initial weights and image order for every loss.

    Args:
        output_dir: folder for sweep.json and the runs.
        losses: the losses, by label.
        runs: final runs per loss, with seeds 0, 1, ...
    """

    output_dir: str
    losses: dict[str, SweptLoss]
    runs: int

    def __post_init__(self) -> None:
        check_fields(
            self,
            runs=(1 <= self.runs <= FIRST_TRIAL_SEED, f"an integer in [1, {FIRST_TRIAL_SEED}]"),
            losses=(bool(self.losses), "at least one"),
        )
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

    def trial(self, loss: SweptLoss, learning_rate: float) -> ImageRunConfig:
        """Return a trial run, which does not evaluate on the test images."""
        return ImageRunConfig(
            output_dir="",
            data=self.data,
            loss=LossConfig(loss.name, loss.params, loss.learn),
            network=self.network,
            train=replace(self.train, learning_rate=learning_rate, seed=FIRST_TRIAL_SEED),
            test=False,
            device=self.device,
        )

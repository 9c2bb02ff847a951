"""Wrong input to the image experiment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.images.__main__ import main
from experiments.images.config import (
    DataConfig,
    ImageSweepConfig,
    LossConfig,
    SweptLoss,
    TrainConfig,
)
from experiments.images.criteria import make_criterion
from tests.bad_input import Wrong
from tests.experiments.images.making import digits, write_mnist


def train(*arguments: str) -> Callable[[Path], None]:
    """The command on a small data set; nothing is written."""

    def call(folder: Path) -> None:
        write_mnist(folder / "mnist", "test", digits(140))
        data = ["--data.data_dir", str(folder / "mnist"), "--data.validation", "60"]
        given = [*data, "--data.test", "60", "--output_dir", str(folder / "run")]
        try:
            main(["train", *given, *arguments])
        finally:
            assert not (folder / "run").exists()

    return call


def sweep(**changes: Any) -> Callable[[Path], ImageSweepConfig]:
    return lambda folder: ImageSweepConfig(
        **{"output_dir": str(folder), "losses": {"mse": SweptLoss("mse", [0.1])}, "runs": 1}
        | changes
    )


def loss(name: str, **params: float | str) -> Callable[[Path], object]:
    return lambda folder: make_criterion(LossConfig(name, params))


EPS = ["--loss.name", "spherical-softmax", "--loss.params.eps", "-1"]

ROWS = [
    Wrong(f"images: {name}", call, error, says)
    for name, call, error, says in (
        ("validation", lambda _: DataConfig(validation=0), ValueError, r"data\.validation=0"),
        ("data_dir", train("--data.data_dir", "nowhere"), SystemExit, "data_dir=nowhere"),
        ("loss", train("--loss.name", "sofmax"), SystemExit, "did you mean"),
        ("params", train(*EPS), SystemExit, "eps=-1"),
        ("zeros", loss("spherical-softmax", eps=0.0), ValueError, "exact zeros"),
        ("of mse", loss("mse", eps=1.0), TypeError, "eps: unknown"),
        ("of a bound", loss("bouchard", xi="best"), ValueError, "xi='best'"),
        ("widths", train("--network.widths", "[3, 4]"), SystemExit, "widths="),
        ("rate", train("--train.learning_rate", "0"), SystemExit, "learning_rate=0"),
        ("runs", sweep(runs=0), ValueError, "runs=0"),
        ("losses", sweep(losses={}), ValueError, "losses={}"),
        ("rates", sweep(losses={"m": SweptLoss("mse", [1, 1])}), ValueError, "each once"),
        ("train", sweep(train=TrainConfig(seed=3)), ValueError, "seed=3"),
    )
]

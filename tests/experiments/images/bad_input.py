"""Wrong input to the image experiment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.images.__main__ import main
from experiments.images.config import ImageSweepConfig, LossConfig, SweptLoss, TrainConfig
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


TWO = {"a": SweptLoss("mse", [0.1]), "b": SweptLoss("softmax", [0.1, 0.2])}
EPS = ["--loss.name", "spherical-softmax", "--loss.params.eps", "-1"]

ROWS = [
    Wrong(f"images: {name}", call, error, says)
    for name, call, error, says in (
        ("folder", train("--data.data_dir", "nowhere"), SystemExit, "data_dir=nowhere: no such"),
        ("loss", train("--loss.name", "sofmax"), SystemExit, r"loss\.name=sofmax: .*did you mean"),
        ("eps", train(*EPS), SystemExit, r"loss\.name=spherical-softmax: eps=-1.* out of range"),
        ("zeros", loss("spherical-softmax", eps=0.0), ValueError, "softmax: .*exact zeros"),
        ("not its", loss("softmax", eps=1.0), TypeError, "softmax: eps=1.0: unknown parameter"),
        ("of mse", loss("mse", eps=1.0), TypeError, "mse: eps: unknown parameter; it takes none"),
        ("xi", loss("bouchard", xi="best"), ValueError, r"loss\.name=bouchard: xi='best'"),
        ("of a bound", loss("bouchard", eps=1.0), TypeError, "unknown .* takes xi, alpha"),
        ("widths", train("--network.widths", "[3, 4]"), SystemExit, r"widths=\[3, 4\]: expected 3"),
        ("rate", train("--train.learning_rate", "0"), SystemExit, "rate=0.*: expected a finite"),
        ("runs", sweep(runs=0), ValueError, r"runs=0: expected an integer in \[1, 1000\]"),
        ("no loss", sweep(losses={}), ValueError, "losses={}: expected at least one"),
        ("label", sweep(losses={"a/b": TWO["a"]}), ValueError, "'a/b' must fit into file names"),
        ("twice", sweep(losses={"m": SweptLoss("mse", [1, 1])}), ValueError, "each once"),
        ("unequal", sweep(losses=TWO), ValueError, "as many learning_rates for each, got .*2"),
        (
            "seed",
            sweep(train=TrainConfig(seed=3)),
            ValueError,
            "seed=3: a sweep sets it; give runs",
        ),
        ("swept", sweep(train=TrainConfig(learning_rate=3)), ValueError, "sets it; give losses"),
    )
]

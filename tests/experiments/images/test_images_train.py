"""Networks, the dead start, learning, stopping, and a run that is cut off and resumed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.images.__main__ import EXPERIMENT, main
from experiments.images.config import (
    DataConfig,
    ImageRunConfig,
    LossConfig,
    NetworkConfig,
    TrainConfig,
)
from experiments.images.networks import make_network
from experiments.images.run import assemble, measure
from sparse_attn.system.run_folders import RESULTS_FILE
from tests.experiments.images.making import colours

LOSSES = {
    "mse": 0.02,
    "softmax": 0.05,
    "softmax-abs": 0.05,
    "spherical-softmax": 0.03,
    "taylor-softmax": 0.1,
    "bouchard": 0.05,
    "sparsemax": 0.05,
}


def trained(config: ImageRunConfig) -> dict[str, Any]:
    results = EXPERIMENT.train(config, EXPERIMENT.prepare(config))
    assert results is not None
    return results


def with_loss(config: ImageRunConfig, name: str) -> ImageRunConfig:
    return replace(
        config,
        loss=LossConfig(name),
        train=replace(config.train, learning_rate=LOSSES[name]),
    )


def test_network_of_mnist_is_that_of_the_paper() -> None:
    pixels = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    network = make_network("mnist", NetworkConfig())
    assert network(pixels).shape == (5, 10)
    weights = [tuple(p.shape) for p in network.parameters() if p.dim() > 1]
    assert weights == [(30, 1, 5, 5), (60, 30, 5, 5), (500, 240), (10, 500)]


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_network_of_cifar_has_fourteen_layers(name: str, classes: int) -> None:
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    network = make_network(name, NetworkConfig(widths=[2, 3, 4, 5]))
    assert network(pixels).shape == (2, classes)
    shapes = [tuple(p.shape) for p in network.parameters() if p.dim() > 1]
    assert len(shapes) == 14
    assert all(shape[2:] == (3, 3) for shape in shapes[:-1])


def test_run_with_a_dead_start_is_refused(config: ImageRunConfig) -> None:
    dead = replace(config, network=NetworkConfig(output_std=0.0))
    with pytest.raises(ValueError, match=r"network\.output_std=0: .*expected a number above 0"):
        EXPERIMENT.prepare(replace(dead, loss=LossConfig("softmax-abs")))
    assert not Path(config.output_dir).exists()
    assemble(replace(dead, loss=LossConfig("taylor-softmax")))


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_learns_from_a_few_hundred_images(config: ImageRunConfig, name: str) -> None:
    results = trained(with_loss(config, name))
    assert results["test"]["error"] < 0.2
    losses = [epoch["loss"] for epoch in results["history"]]
    assert losses[-1] < 0.6 * losses[0]
    assert results["images"] == {"found": 400, "train": 280, "validation": 60, "test": 60}


def test_first_weights_and_order_are_the_same_for_every_loss(config: ImageRunConfig) -> None:
    first, other = (assemble(with_loss(config, name)) for name in ("mse", "taylor-softmax"))
    for ours, theirs in zip(
        first.model.network.parameters(), other.model.network.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert torch.equal(first.splits.test.labels, other.splits.test.labels)


@pytest.mark.slow
def test_cifar_learns_with_flips_and_decay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [colours(24, 10, seed) for seed in range(5)]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    # the class is the brightness
    pixels = (pixels // 10 + 23 * labels[:, None]).astype("uint8").reshape(-1, 3, 32, 32)
    parts = {"train": (pixels, labels), "test": (pixels[:24], labels[:24])}
    monkeypatch.setattr("experiments.images.data.base.read_cifar", lambda *_: parts)
    config = ImageRunConfig(
        output_dir=str(tmp_path / "run"),
        data=DataConfig("cifar10", str(tmp_path), split="official", validation=20),
        loss=LossConfig("taylor-softmax"),
        network=NetworkConfig(widths=[4, 4, 8, 8]),
        train=TrainConfig(epochs=12, batch_size=10, weight_decay=1e-4, flip=True),
        device="cpu",
    )
    results = trained(config)
    assert results["images"] == {"found": 144, "train": 100, "validation": 20, "test": 24}
    assert results["test"]["error"] < 0.6
    assert results["history"][-1]["loss"] < results["history"][0]["loss"]


MEASURE = "experiments.images.run.measure"


def test_rate_is_halved_and_training_stops_without_a_better_score(
    config: ImageRunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TrainConfig(epochs=50, patience=2, stop_after=5, learning_rate=0.01, batch_size=50)
    run = assemble(replace(config, train=settings))
    errors = iter([0.5, 0.4, *[0.45] * 48])
    monkeypatch.setattr(MEASURE, lambda *_: {"error": next(errors, 0.5), "criterion": 0.0})
    results = run.perform(tmp_path)
    assert (results["best_epoch"], results["epochs"]) == (2, 7)
    rates = [epoch["learning_rate"] for epoch in results["history"]]
    assert rates == [0.01] * 4 + [0.005] * 2 + [0.0025]


def test_equal_accuracies_are_told_apart_by_the_criterion(
    config: ImageRunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = assemble(config)
    criteria = iter([0.3, 0.2, 0.25, 0.21])
    monkeypatch.setattr(MEASURE, lambda *_: {"error": 0.1, "criterion": next(criteria, 1.0)})
    assert run.perform(tmp_path)["best_epoch"] == 2


def test_measures_are_means_over_all_images(config: ImageRunConfig) -> None:
    run = assemble(config)
    images = run.splits.train
    found = measure(run.model, images)
    with torch.no_grad():
        log_p = run.model(images.pixels).log_softmax(-1)
    negll = -log_p.gather(-1, images.labels[:, None]).mean().item()
    assert found["negll"] == pytest.approx(negll, rel=1e-5)
    assert found["criterion"] == pytest.approx(negll, rel=1e-5)
    wrong = (log_p.argmax(-1) != images.labels).double().mean().item()
    assert found["error"] == pytest.approx(wrong)


def test_command_trains_and_says_where_the_results_are(
    config: ImageRunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    widths = ["--network.widths", "[6, 8, 20]", "--network.output_std", "0.03"]
    data = ["--data.data_dir", str(config.data.data_dir), "--data.validation", "60"]
    given = [*data, "--data.test", "60", "--train.epochs", "1", *widths, "--device", "cpu"]
    loss = ["--loss.name", "spherical-softmax", "--loss.params.eps", "0.1"]
    main(["train", "--output_dir", config.output_dir, *given, *loss])
    results = json.loads((Path(config.output_dir) / RESULTS_FILE).read_text())
    assert results["config"]["loss"]["params"] == {"eps": 0.1}
    shown = capsys.readouterr().out
    assert f"test error: {results['test']['error']:.4f}" in shown
    assert f"test negll: {results['test']['negll']:.4f}" in shown

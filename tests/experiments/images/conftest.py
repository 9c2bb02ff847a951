"""A small data set on disk, and a config that trains on it within a second."""

from pathlib import Path

import pytest

from experiments.images.config import DataConfig, ImageRunConfig, NetworkConfig, TrainConfig
from tests.experiments.images.making import digits, write_mnist


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """400 images with easy classes, in the files of MNIST's test set."""
    folder = tmp_path / "mnist"
    write_mnist(folder, "test", digits(400))
    return folder


@pytest.fixture
def config(tmp_path: Path, mnist: Path) -> ImageRunConfig:
    """A run on 280 of them, with a narrow network."""
    return ImageRunConfig(
        output_dir=str(tmp_path / "run"),
        data=DataConfig("mnist", str(mnist), validation=60, test=60),
        network=NetworkConfig(widths=[6, 8, 20], output_std=0.03),
        train=TrainConfig(epochs=4, batch_size=20, learning_rate=0.01),
        device="cpu",
    )

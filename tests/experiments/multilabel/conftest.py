"""A run of a second."""

from pathlib import Path

import pytest

from experiments.multilabel.config import MethodConfig, RunConfig, TrainConfig
from tests.experiments.multilabel.methods_and_data import DATA


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Three epochs of softmax into tmp_path/run."""
    return RunConfig(
        output_dir=str(tmp_path / "run"),
        synthetic=DATA,
        method=MethodConfig(thresholds=[0.1, 0.2]),
        train=TrainConfig(epochs=3, batch_size=50, learning_rate=0.01, device="cpu"),
    )

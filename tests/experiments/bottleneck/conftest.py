"""A config that runs in a second."""

from pathlib import Path

import pytest

from experiments.bottleneck.config import BottleneckConfig, Cell

YAML = """\
output_dir: {folder}
alphas: [0.1]
contexts: 30
vocabularies: [6]
dimensions: [1, 3]
heads:
  softmax: {{}}
  mos: {{components: 2}}
learning_rates: [0.03, 0.1]
steps: 4
batch: 10
seeds: 2
device: cpu
"""


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    """2 dimensions x 2 heads x (2 rates + 2 seeds) = 16 runs into tmp_path/records."""
    path = tmp_path / "tiny.yaml"
    path.write_text(YAML.format(folder=tmp_path / "records"))
    return path


@pytest.fixture
def config(tmp_path: Path) -> BottleneckConfig:
    """What `yaml_file` says."""
    return BottleneckConfig(
        output_dir=str(tmp_path / "records"),
        alphas=[0.1],
        contexts=30,
        vocabularies=[6],
        dimensions=[1, 3],
        heads={"softmax": {}, "mos": {"components": 2}},
        learning_rates=[0.03, 0.1],
        steps=4,
        batch=10,
        seeds=2,
        device="cpu",
    )


@pytest.fixture
def cell(config: BottleneckConfig) -> Cell:
    """One of its runs."""
    return config.cell(0.1, 6, 3, "softmax", 0.1, 0)

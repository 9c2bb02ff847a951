"""The demo's table and plot, and that its data and config fit together."""

from pathlib import Path

import pytest

from demo.__main__ import MAPPINGS, ROOT, plot, table
from glue.data import load_task
from glue.tasks import get_task
from tests.glue.running import parsed


@pytest.fixture
def results() -> dict[str, dict]:
    entries = [{"epoch": e, "accuracy": 0.5 + e / 10, "sparsity": e / 20} for e in (1.0, 2.0)]
    result = {
        "metrics": {"accuracy": 0.7},
        "sparsity": {"dev": {"mean": 0.1}},
        "seconds": {"train": 61.4},
        "rows": {"train": 2400, "dev": 400},
        "per_epoch": entries,
    }
    return dict.fromkeys(MAPPINGS.values(), result)


def test_table(results: dict[str, dict]) -> None:
    lines = table(results).splitlines()
    assert len({len(line) for line in lines[:5]}) == 1
    assert lines[2].split() == ["softmax", "70.0", "%", "10.0", "%", "61"]
    assert "2400 training and 400 dev pairs" in lines[5]


def test_plot(results: dict[str, dict], tmp_path: Path) -> None:
    path = plot(results, tmp_path / "demo.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_data_and_config_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = parsed(["train", "--config", "configs/glue/demo.yaml"])
    data = load_task(get_task(config.task))
    assert len(data["train"]) > 2000
    assert len(data["dev"]) >= 400

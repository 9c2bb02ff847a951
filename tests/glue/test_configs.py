"""Every shipped config parses, describes a real task and a real mapping."""

from pathlib import Path

import pytest

from glue.__main__ import parse
from glue.tasks import get_task

ROOT = Path(__file__).parents[2]
TASKS = sorted((ROOT / "configs/glue").rglob("*.yaml"))
MAPPINGS = sorted((ROOT / "configs/mapping").rglob("*.yaml"))


@pytest.mark.parametrize("task", TASKS, ids=lambda path: path.stem)
def test_task_config(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = parse(["train", "--config", str(task)])
    assert get_task(config.task).name.lower() in (task.stem, "entail")
    assert f"configs/glue/{task.name}" in task.read_text() or task.stem == "demo"


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda path: path.stem)
def test_mapping_config(mapping: Path) -> None:
    config = parse(["train", "--config", str(TASKS[0]), "--config", str(mapping)])
    schedule = config.mapping.schedule_of_run()
    if "ramped" in mapping.stem or mapping.stem == "r-softmax":
        assert schedule is not None
        assert schedule.value(1.0) == config.mapping.params[schedule.parameter]
    else:
        assert schedule is None

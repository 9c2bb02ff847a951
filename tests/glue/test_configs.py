"""Every shipped config parses, describes a real task and a real mapping."""

from pathlib import Path

import pytest

from glue.plan import make_plan
from sparse_attn.evaluation.tasks import get_task
from tests.commands import ROOT
from tests.glue.running import parsed

# by config of a sweep: the number of runs that the comment at the top of the file gives
RUNS = {
    "table2": 525,
    "table2-paper": 200,
    "minilm-table": 160,
    "mrpc-paper": 40,
    "mrpc-fair": 56,
}
SWEEPS = [ROOT / f"configs/glue/{name}.yaml" for name in RUNS]
TASKS = sorted({*(ROOT / "configs/glue").glob("*.yaml")} - {*SWEEPS})
MAPPINGS = sorted((ROOT / "configs/mapping").rglob("*.yaml"))


@pytest.mark.parametrize("task", TASKS, ids=lambda path: path.stem)
def test_task_config(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = parsed(["train", "--config", str(task)])
    assert get_task(config.task).name.lower() in (task.stem, "order")
    assert f"configs/glue/{task.name}" in task.read_text()


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda path: path.stem)
def test_mapping_config(mapping: Path) -> None:
    config = parsed(["train", "--config", str(TASKS[0]), "--config", str(mapping)])
    schedule = config.mapping.schedule_of_run()
    if "ramped" in mapping.stem or mapping.stem in ("r-softmax", "entmax"):
        assert schedule is not None
        assert schedule.value(1.0) == config.mapping.params[schedule.parameter]
    else:
        assert schedule is None


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.stem)
def test_sweep_config(sweep: Path) -> None:
    plan = make_plan(parsed(["sweep", "--config", str(sweep)]))
    for mapping in (run.config.mapping for runs in plan.first.values() for run in runs):
        schedule = mapping.schedule_of_run()
        if schedule is not None:
            assert schedule.value(1.0) == mapping.params[schedule.parameter]
    assert plan.expected({}) == RUNS[sweep.stem]


def test_sweep_of_the_docs(tmp_path: Path) -> None:
    text = (ROOT / "docs/glue.md").read_text()
    file = tmp_path / "sweep.yaml"
    file.write_text(text.split("```yaml\n")[2].split("```")[0])
    assert make_plan(parsed(["sweep", "--config", str(file)])).expected({}) == 1 * 2 * (4 + 5)

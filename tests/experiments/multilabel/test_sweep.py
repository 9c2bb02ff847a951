"""Which runs a sweep plans, and a small one from beginning to end."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from experiments.multilabel import sweep as sweeps
from experiments.multilabel.__main__ import PROGRAM, main
from experiments.multilabel.config import MethodConfig, SweepConfig, TrainConfig
from experiments.multilabel.data.config import DataConfig, SyntheticConfig
from pipeline.sweep.config import FIRST_TRIAL_SEED
from pipeline.sweep.plan import PlannedRun
from pipeline.sweep.records import read_records
from tests.experiments.multilabel.methods_and_data import DATA, METHODS

ROOT = Path(__file__).parents[3]


def tiny(folder: Path, rates: list[float]) -> SweepConfig:
    return SweepConfig(
        output_dir=str(folder),
        data={"a": DataConfig(synthetic=DATA), "b": DataConfig(synthetic=replace(DATA, labels=1))},
        methods={name: MethodConfig(**METHODS[name]) for name in ("softmax", "r-softmax")},
        learning_rates=rates,
        seeds=2,
        train=TrainConfig(epochs=1, batch_size=50, device="cpu"),
    )


def test_one_rate_is_a_grid_of_seeds(tmp_path: Path) -> None:
    plan = sweeps.make_plan(tiny(tmp_path, [0.01]))
    due = list(plan.due({}))
    assert len(due) == plan.expected({}) == 8
    assert {run.stage for run in due} == {"grid"}
    # every cell's first seed before any second one
    assert [run.config.train.seed for run in due] == [0] * 4 + [1] * 4
    assert len({run.hash for run in due}) == 8


def test_several_rates_are_tried_and_the_best_gets_the_seeds(tmp_path: Path) -> None:
    plan = sweeps.make_plan(tiny(tmp_path, [0.01, 0.1]))
    trials = list(plan.due({}))
    assert plan.expected({}) == 8 + 8
    assert {run.config.train.seed for run in trials} == {FIRST_TRIAL_SEED}
    done = {
        run.hash: run.record(status="finished", results={"score": run.config.train.learning_rate})
        for run in trials
    }
    finals = list(plan.due(done))
    assert {(run.config.train.learning_rate, run.config.train.seed) for run in finals} == {
        (0.1, 0),
        (0.1, 1),
    }


def test_a_run_is_done_or_has_diverged(tmp_path: Path) -> None:
    run = next(iter(sweeps.make_plan(tiny(tmp_path, [0.01])).due({})))
    outcome = sweeps.execute(run)
    assert outcome["status"] == "finished"
    assert 0 < outcome["results"]["score"] < 1
    wild = replace(run.config, train=replace(run.config.train, learning_rate=1e30))
    outcome = sweeps.execute(replace(run, config=wild))
    assert outcome["status"] == "diverged"
    assert "train.learning_rate" in outcome["error"]


def test_a_method_that_cannot_be_is_found_before_any_run(tmp_path: Path) -> None:
    config = tiny(tmp_path / "sweep", [0.01])
    bad = replace(config, methods={**config.methods, "bad": MethodConfig("sparsemax", loss="nll")})
    with pytest.raises(ValueError, match=r"methods\.bad on data\.a: .*nll"):
        sweeps.check(bad)


@pytest.mark.parametrize("file", sorted((ROOT / "configs/multilabel").glob("synthetic*.yaml")))
def test_configs_of_the_synthetic_study(file: Path) -> None:
    parsed = PROGRAM.parse(["sweep", "--config", str(file)])
    assert isinstance(parsed, tuple)
    config, _ = parsed
    assert config.train.epochs == 150
    assert config.learning_rates[0] == 0.001
    for name, data in config.data.items():
        assert data.synthetic is not None
        assert (data.synthetic.rows, data.synthetic.features) == (5000, 128)
        assert name.startswith(f"n{data.synthetic.classes}-")
    configs = [data.synthetic for data in config.data.values()]
    assert {c.classes for c in configs if c} == {10, 20, 30}
    assert len(set(configs)) == len(configs)


class InThisProcess:
    """Stands in for `Pool`, whose processes take long to start."""

    def __init__(self, work: Callable[[PlannedRun], Any], *_: object) -> None:
        self.work = work

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def results(
        self, due: Callable[[], Iterable[PlannedRun]], show: object
    ) -> Iterator[tuple[PlannedRun, Any]]:
        while run := next(iter(due()), None):
            yield run, self.work(run)


def test_a_sweep_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("pipeline.sweep.run.Pool", InThisProcess)
    folder, file = tmp_path / "sweep", tmp_path / "sweep.yaml"
    synthetic = {"classes": 4, "labels": 2, "rows": 200, "features": 8}
    content = {
        "output_dir": str(folder),
        "data": {"a": {"synthetic": synthetic}},
        "methods": {"softmax": {"thresholds": [0.1, 0.2]}, "entmax": {"mapping": "entmax"}},
        "learning_rates": [0.01, 0.02],
        "seeds": 2,
        "train": {"epochs": 1, "batch_size": 50, "device": "cpu"},
    }
    file.write_text(yaml.safe_dump(content))
    main(["sweep", "--config", str(file)])
    assert "8 finished" in capsys.readouterr().out
    records = read_records(folder)
    assert Counter(r.stage for r in records.by_hash.values()) == {"trial": 4, "final": 4}
    assert not records.faults
    assert max(file.stat().st_size for file in folder.glob("runs/*")) < 5_000
    main(["report", str(folder)])
    assert "softmax" in (folder / "report.md").read_text()


def test_synthetic_defaults_are_the_papers() -> None:
    assert (SyntheticConfig().rows, SyntheticConfig().features) == (5000, 128)
    assert SyntheticConfig().parts == (3500, 500, 1000)

"""Which runs a sweep plans, and a small one from beginning to end."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from experiments.multilabel.__main__ import EXPERIMENT, main
from experiments.multilabel.config import MethodConfig, MultilabelSweepConfig, TrainConfig
from experiments.multilabel.data.config import DataConfig
from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED
from tests.experiments.multilabel.tiny import DATA, METHODS


def tiny(rates: list[float]) -> MultilabelSweepConfig:
    return MultilabelSweepConfig(
        output_dir="unused",
        data={"a": DataConfig(synthetic=DATA), "b": DataConfig(synthetic=replace(DATA, labels=1))},
        methods={name: METHODS[name] for name in ("softmax", "r-softmax")},
        learning_rates=rates,
        seeds=2,
        train=TrainConfig(epochs=1, batch_size=50, device="cpu"),
    )


def test_one_rate_is_a_grid_of_seeds() -> None:
    plan = EXPERIMENT.plan(tiny([0.01]))
    due = list(plan.due({}))
    assert len(due) == plan.expected({}) == 8
    assert {run.stage for run in due} == {"grid"}
    # every cell's first seed before any second one
    assert [run.config.train.seed for run in due] == [0] * 4 + [1] * 4
    assert len({run.hash for run in due}) == 8


def test_a_method_that_cannot_be_is_found_before_any_run() -> None:
    config = tiny([0.01])
    bad = replace(config, methods={**config.methods, "bad": MethodConfig("sparsemax", loss="nll")})
    with pytest.raises(ValueError, match=r"bad on a: method: .*nll"):
        EXPERIMENT.check(bad, EXPERIMENT.plan(bad))


@pytest.mark.usefixtures("in_this_process")
def test_a_sweep_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = tmp_path / "sweep", tmp_path / "sweep.yaml"
    content = {
        "output_dir": str(folder),
        "data": {"a": {"synthetic": {"classes": 4, "labels": 2, "rows": 200, "features": 8}}},
        "methods": {"softmax": {"thresholds": [0.1, 0.2]}, "entmax": {"mapping": "entmax"}},
        "learning_rates": [0.01, 0.02],
        "seeds": 2,
        "train": {"epochs": 1, "batch_size": 50, "device": "cpu"},
    }
    file.write_text(yaml.safe_dump(content))
    main(["sweep", "--config", str(file)])
    assert "8/8" in capsys.readouterr().err
    records = EXPERIMENT.read(folder).records
    assert Counter(r.stage for r in records) == {"trial": 4, "final": 4}
    trials = [r for r in records if r.stage == "trial"]
    assert {trial.config["train"]["seed"] for trial in trials} == {FIRST_TRIAL_SEED}
    assert max(file.stat().st_size for file in folder.glob("runs/*/*")) < 5_000
    main(["report", str(folder)])
    assert "softmax" in (folder / "report.md").read_text()

"""Sweeps: what is planned, a sweep that is killed and continued, bad input, and the report."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.images.__main__ import EXPERIMENT
from experiments.images.config import (
    DataConfig,
    ImageSweepConfig,
    NetworkConfig,
    SweptLoss,
    TrainConfig,
)
from experiments.images.published import published
from sparse_attn.engine.command import from_dict
from sparse_attn.engine.config import ReportConfig
from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED
from sparse_attn.engine.sweep.plan import PlannedRun
from sparse_attn.engine.sweep.records import Record
from tests.commands import ROOT
from tests.engine.sweep.inline import write_record

CONFIGS = ROOT / "configs/images"
TASK = "mnist"


@pytest.fixture
def tiny(tmp_path: Path, mnist: Path) -> ImageSweepConfig:
    """2 losses x (2 rates + 1 run)."""
    return ImageSweepConfig(
        output_dir=str(tmp_path / "sweep"),
        losses={
            "softmax": SweptLoss("softmax", [0.01, 0.02]),
            "sphere": SweptLoss("spherical-softmax", [0.003, 0.01], {"eps": 0.1}),
        },
        runs=1,
        data=DataConfig("mnist", str(mnist), train=100, validation=60, test=60),
        network=NetworkConfig(widths=[4, 5, 8], output_std=0.03),
        train=TrainConfig(epochs=2, batch_size=20),
        device="cpu",
    )


def outcome(run: PlannedRun, accuracy: float) -> Record:
    """A record as a run would leave it."""
    measured = {"criterion": 0.1, "error": 1 - accuracy, "negll": 0.1}
    results = {
        "score": accuracy,
        "measure": "negll",
        "validation": measured,
        "test": measured if run.config.test else None,
        "epochs": 3,
        "best_epoch": 2,
        "history": [{"error": error} for error in (0.5, 1 - accuracy, 0.4)],
        "images": {"train": 100, "validation": 60, "test": 60},
        "seconds": 1.0,
        "seed": run.config.train.seed,
        "device": "a CPU",
    }
    return run.record(status="finished", results=results)


def test_the_best_trial_becomes_the_runs_that_count(tiny: ImageSweepConfig) -> None:
    plan = EXPERIMENT.plan(replace(tiny, runs=3))
    trials = [run for runs in plan.first.values() for run in runs]
    assert {run.config.train.seed for run in trials} == {FIRST_TRIAL_SEED}
    # they do not look at the test images
    assert not any(run.config.test for run in trials)
    finals = plan.finals({run.hash: outcome(run, 0.9 - 0.1 * run.index) for run in trials})
    for label, rate in (("softmax", 0.01), ("sphere", 0.003)):
        configs = [run.config for run in finals[TASK, label]]
        found = [(c.train.seed, c.train.learning_rate, c.test, c.loss.params) for c in configs]
        assert found == [(seed, rate, True, tiny.losses[label].params) for seed in range(3)]


def test_where_the_data_lie_is_no_part_of_what_a_run_is(tiny: ImageSweepConfig) -> None:
    moved = replace(tiny, data=replace(tiny.data, data_dir="elsewhere"), output_dir="other")
    for ours, theirs in zip(
        EXPERIMENT.plan(tiny).first.values(), EXPERIMENT.plan(moved).first.values(), strict=True
    ):
        assert [run.hash for run in ours] == [run.hash for run in theirs]
    assert tiny.content() == moved.content()
    assert from_dict(ImageSweepConfig, {"output_dir": "", **tiny.content()}).losses == tiny.losses


def recorded(config: ImageSweepConfig) -> None:
    """What a sweep of the config leaves: softmax is better by 2 points in each run."""
    plan, folder = EXPERIMENT.plan(config), Path(config.output_dir)
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"format": 1, **config.content()}))
    trials = [run for runs in plan.first.values() for run in runs]
    done = {run.hash: outcome(run, 0.9 - 0.01 * run.index) for run in trials}
    for (_, label), runs in plan.finals(done).items():
        worse = 0.02 * (label == "sphere")
        done |= {run.hash: outcome(run, 0.95 - 0.01 * run.index - worse) for run in runs}
    for record in done.values():
        write_record(folder, record)


def test_report_holds_ours_and_theirs(tiny: ImageSweepConfig) -> None:
    config = replace(tiny, runs=3)
    recorded(config)
    page = EXPERIMENT.report(ReportConfig(config.output_dir)).path
    text = page.with_suffix(".md").read_text()
    assert "100 train, 60 validation, 60 test" in text
    assert "Runs: 10 of 10. Failed: 0. Diverged: 0." in text
    # error and its spread, the paper's, and the difference of pairs
    softmax, sphere = (
        next(line for line in text.splitlines() if line.startswith(f"| {label} | negll"))
        for label in ("softmax", "sphere")
    )
    assert "| 6.00 ± 1.00 | 0.812 (0.104) |" in softmax
    assert "| 8.00 ± 1.00 | 0.828 (0.094) |" in sphere
    assert "negll 0.0311 (0.0031)" in sphere
    sphere = "| 8.00 ± 1.00 | +2.00 | [+2.00, +2.00] | < 0.001 | < 0.001 | worse | n/a |"
    assert sphere in text.replace("\\", "")
    assert "0.003: 10.00; 0.01: 11.00" in text
    for name in ("differences.png", "learning.png"):
        assert (page.parent / name).read_bytes().startswith(b"\x89PNG")
    files = {path.name: path.read_bytes() for path in page.parent.iterdir() if path.is_file()}
    EXPERIMENT.report(ReportConfig(config.output_dir))
    assert all((page.parent / name).read_bytes() == content for name, content in files.items())


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_are_valid_and_have_their_published_rows(file: Path) -> None:
    if file.stem == "mnist":
        EXPERIMENT.program.parse(["train", "--config", str(file)])
        return
    config, _ = EXPERIMENT.program.parse(["sweep", "--config", str(file)])[1]
    assert len(EXPERIMENT.plan(config).first) == len(config.losses)
    table = re.search(r"table(\d)", file.stem)
    if table:
        title, rows = published(config)
        assert title.startswith(f"table {table[1]},")
        assert set(rows) == set(config.losses)
    assert (ROOT / config.output_dir).is_relative_to(ROOT / "runs/images")

"""The command line end to end: a run, a sweep, its report."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.bottleneck.__main__ import EXPERIMENT, main
from experiments.bottleneck.config import SweepConfig
from experiments.bottleneck.heads import HEADS
from pipeline.experiment import execute
from pipeline.sweep.config import FIRST_TRIAL_SEED
from pipeline.sweep.plan import PlannedRun
from pipeline.sweep.records import Record, read_records, write_record
from tests.experiments.bottleneck.tiny import TINY, sweep

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs/bottleneck"


def run_here(config: SweepConfig) -> dict[str, Record]:
    """The records of a sweep, whose runs take less time than to start a process."""
    plan = EXPERIMENT.plan(config)
    done: dict[str, Record] = {}
    while run := next(plan.due(done), None):
        done[run.hash] = run.record(**execute(EXPERIMENT.name, run))
    return done


def report_of(config: SweepConfig, records: dict[str, Record], folder: Path) -> str:
    """The page on these records."""
    (folder / "runs").mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"format": 1, **config.content()}))
    for record in records.values():
        write_record(folder, record)
    main(["report", str(folder)])
    return (folder / "report.md").read_text()


def test_a_sweep_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = tmp_path / "records", tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({**TINY, "output_dir": str(folder)}))
    main(["sweep", "--config", str(file)])
    assert "16 finished" in capsys.readouterr().out
    records = read_records(folder).by_hash
    here = run_here(sweep())
    assert {hash_: untimed(record) for hash_, record in records.items()} == {
        hash_: untimed(record) for hash_, record in here.items()
    }
    main(["pack", str(folder)])
    assert list((folder / "runs").iterdir()) == []
    assert read_records(folder).by_hash == records
    cell = [record for record in records.values() if record.mapping == "mos"]
    cell = [record for record in cell if record.task == "alpha0.1-M6-D3"]
    assert all(record.config["options"] == {"components": 2} for record in cell)
    assert [record.config["seed"] for record in cell if record.stage == "trial"] == [
        FIRST_TRIAL_SEED
    ] * 2
    last = cell[0].results or {}
    assert last["device"].endswith("1 threads")
    assert last["versions"]["torch"] == version("torch")
    assert str(tmp_path) not in json.dumps([record.config for record in cell])


def untimed(record: Record) -> dict[str, Any]:
    results = {key: value for key, value in (record.results or {}).items() if key != "seconds"}
    return {"config": record.config, "status": record.status, **results}


def test_one_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--head mos --options.components 2 --contexts 30 --steps 4 --batch 10 --vocabulary 6"
    main(["train", "--output_dir", str(tmp_path / "run"), *given.split(), "--device", "cpu"])
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert f"mean KL: {results['kl']:.3f} nats" in capsys.readouterr().out
    assert results["config"]["options"] == {"components": 2}


def test_the_report_is_of_the_runs_that_count(tmp_path: Path) -> None:
    config = sweep()
    records = run_here(config)
    page = report_of(config, records, tmp_path / "a")

    def values(head: str, dimension: int, key: str) -> list[float]:
        cell = (f"alpha0.1-M6-D{dimension}", head, "final")
        runs = [r for r in records.values() if (r.task, r.mapping, r.stage) == cell]
        return [run.results[key] for run in runs if run.results]

    found = values("softmax", 1, "kl")
    mean, sd = sum(found) / 2, abs(found[0] - found[1]) / 2**0.5
    assert f"| 6 | 1 | {mean:.3f} ± {sd:.3f} |" in page
    floors = values("mos", 3, "floor")
    assert re.search(rf"\| 6 \| 3 \|.*\| {sum(floors) / 2:.1f} \|", page)
    again = report_of(config, records, tmp_path / "b")
    for name in ("mode-matching", "kl", "log-error"):
        assert f"({name}-alpha0.1.png)" in page
        first, second = ((tmp_path / x / f"{name}-alpha0.1.png").read_bytes() for x in "ab")
        assert len(first) > 10_000
        assert first == second
    assert page == again


def test_the_best_rate_is_that_of_the_lowest_kl() -> None:
    plan = EXPERIMENT.plan(sweep(learning_rates=[0.1, 0.2, 0.3]))
    (cell, trials), *_ = plan.first.items()

    def record(run: PlannedRun, kl: float | None) -> Record:
        if kl is None:
            return run.record(status="diverged", error="")
        return run.record(status="finished", results={"score": -kl})

    done = {run.hash: record(run, kl) for run, kl in zip(trials, (None, 3.0, 2.0), strict=True)}
    finals = plan.finals(done)[cell]
    assert [(run.config.learning_rate, run.config.seed) for run in finals] == [(0.3, 0), (0.3, 1)]


def test_diverged_runs_are_counted(tmp_path: Path) -> None:
    config = sweep()
    records = run_here(config)
    finals = [record for record in records.values() if record.stage == "final"]
    gone = [r for r in finals if (r.task, r.mapping) == ("alpha0.1-M6-D1", "softmax")]
    mos = [r for r in finals if (r.task, r.mapping) == ("alpha0.1-M6-D3", "mos")]
    for record in (*gone, mos[0]):
        diverged = {"status": "diverged", "error": "why", "results": None}
        records[record.hash] = Record(**{**vars(record), **diverged})
    page = report_of(config, records, tmp_path)
    assert "3 diverged and 13 finished of 16" in page
    assert "| 6 | 1 | (2 diverged) |" in page
    assert f"| {(mos[1].results or {})['kl']:.3f} (1 diverged) |" in page


def test_a_sweep_that_has_hardly_begun_has_a_page_without_figures(tmp_path: Path) -> None:
    config = sweep()
    (trial, *_), *_ = EXPERIMENT.plan(config).first.values()
    record = trial.record(**execute(EXPERIMENT.name, trial))
    page = report_of(config, {record.hash: record}, tmp_path)
    assert "1 finished of 16" in page
    assert "png" not in page


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_are_read(file: Path) -> None:
    config, _ = EXPERIMENT.program.parse(["sweep", "--config", str(file)])[1]
    assert tuple(config.heads) == HEADS
    assert config.steps * config.batch == 50 * config.contexts
    assert config.output_dir == f"runs/bottleneck/{file.stem}"

"""Sweeps of anything: stages, packed records, processes that serve many runs."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from sparse_attn.engine.sweep import run as sweep_run
from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.forecast import forecast
from sparse_attn.engine.sweep.plan import PlannedRun, SweepPlan, best_of
from sparse_attn.engine.sweep.records import (
    FOLDER,
    PACKED_FILE,
    SWEEP_FILE,
    Record,
    pack,
    read_records,
)
from sparse_attn.engine.sweep.run import check_folder, claim_folder, run_sweep
from tests.engine.sweep.inline import Inline, full_disk


@dataclass(frozen=True)
class Config:
    """Of a run that takes no time."""

    rate: float
    seed: int

    def comparable(self) -> dict[str, Any]:
        return asdict(self)


def two_stages(seeds: int = 2) -> SweepPlan:
    trials = {("sets", name): [Config(rate, 1000) for rate in (1, 3)] for name in ("a", "b")}
    return best_of(trials, lambda best, seed: Config(best.rate, seed), seeds)


def work(run: PlannedRun) -> dict[str, Any]:
    if run.mapping == "b" and run.config.rate == 3:
        return {"status": "diverged", "error": "NaN"}
    return {"status": "finished", "results": {"score": run.config.rate}}


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_run, "make_pool", Inline)


def test_the_best_trial_is_run_with_every_seed(tmp_path: Path) -> None:
    records = run_sweep(tmp_path, {"name": "x"}, two_stages(), work, Resources())
    assert Inline.order == [
        *("a trial 0", "b trial 0", "a trial 1", "b trial 1"),
        *("a final 0", "b final 0", "a final 1", "b final 1"),
    ]
    finals = [record for record in records.by_hash.values() if record.stage == "final"]
    assert {(record.mapping, record.config["rate"]) for record in finals} == {("a", 3), ("b", 1)}
    assert {record.config["seed"] for record in finals} == {0, 1}
    assert len(records.by_hash) == two_stages().expected(records.by_hash) == 8
    assert json.loads((tmp_path / "sweep.json").read_text()) == {"format": 1, "name": "x"}
    run_sweep(tmp_path, {"name": "x"}, two_stages(), work, Resources())
    assert Inline.order == []


def test_the_bar_names_what_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sweep(tmp_path / "one", {}, two_stages(), work, Resources())
    assert "running=sets a trial 0" in capsys.readouterr().err
    others = tuple(PlannedRun("sets", "c", "final", k, Config(1, k)) for k in range(3))
    monkeypatch.setattr(Inline, "beside", others)
    run_sweep(tmp_path / "four", {}, two_stages(), work, Resources())
    assert "running=sets a trial 0; sets c final 0; 2 more" in capsys.readouterr().err


def test_check_comes_before_the_first_run(tmp_path: Path) -> None:
    def check() -> None:
        raise ValueError("data_dir: nothing there")

    with pytest.raises(ValueError, match="nothing there"):
        run_sweep(tmp_path / "x", {}, two_stages(), work, Resources(), check=check)
    assert not (tmp_path / "x").exists()


def test_packed_records_are_read_and_gone_on_with(tmp_path: Path) -> None:
    records = run_sweep(tmp_path, {}, two_stages(), work, Resources())
    packed = pack(tmp_path)
    assert packed == tmp_path / PACKED_FILE
    assert sorted(path.name for path in tmp_path.iterdir()) == [PACKED_FILE, SWEEP_FILE]
    assert read_records(tmp_path).by_hash == records.by_hash
    run_sweep(tmp_path, {}, two_stages(3), work, Resources())
    assert Inline.order == ["a final 2", "b final 2"]
    pack(tmp_path)
    assert len(read_records(tmp_path).by_hash) == 10


def test_a_run_done_again_wins_over_its_packed_record(tmp_path: Path) -> None:
    def fail(run: PlannedRun) -> dict[str, Any]:
        raise RuntimeError("lost")

    run_sweep(tmp_path, {}, two_stages(), fail, Resources())
    pack(tmp_path)
    records = run_sweep(tmp_path, {}, two_stages(), work, Resources())
    assert {record.status for record in records.by_hash.values()} == {"finished", "diverged"}
    run_sweep(tmp_path, {}, two_stages(), work, Resources())
    assert Inline.order == []


@pytest.mark.parametrize(
    ("times", "due"),
    [
        ({"seconds": 2.0, "startup_seconds": 10.0}, "0:00:48"),
        ({"seconds": {"train": 1.0, "total": 2.0}, "startup_seconds": 10.0}, "0:00:48"),
        ({"seconds": 2.0}, "0:00:08"),  # an older record
    ],
)
def test_a_forecast_counts_the_start_of_runs(
    times: dict[str, Any], due: str, tmp_path: Path
) -> None:
    def timed(run: PlannedRun) -> dict[str, Any]:
        return {"status": "finished", "results": {"score": 1.0, **times}}

    run_sweep(tmp_path, {}, two_stages(1), timed, Resources())
    one_at_once = Resources(cpus_per_run=len(os.sched_getaffinity(0)), gpus_per_run=0)
    lines = forecast(tmp_path, two_stages(3), None, one_at_once)
    assert lines[0] == "runs: 4 of 10 are due"
    assert f"time: about {due}, one run after another" in lines


def test_a_lost_run_is_tried_once_more(tmp_path: Path) -> None:
    tried: Counter[str] = Counter()

    def lost_at_first(run: PlannedRun) -> dict[str, Any]:
        tried[run.hash] += 1
        if run.stage == "trial" and tried[run.hash] == 1:
            raise RuntimeError("lost")
        return work(run)

    records = run_sweep(tmp_path, {}, two_stages(), lost_at_first, Resources())
    assert {record.status for record in records.by_hash.values()} == {"finished", "diverged"}
    assert len(records.by_hash) == 8
    assert sorted(tried.values()) == [1] * 4 + [2] * 4


def test_full_disk_names_what_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = sweep_run.write_record, []

    def fill_up(folder: Path, record: Record) -> None:
        calls.append(record.hash)
        with full_disk() if len(calls) == 4 else nullcontext():
            write(folder, record)

    with monkeypatch.context() as patch:
        patch.setattr(sweep_run, "write_record", fill_up)
        with pytest.raises(
            OSError, match=r"runs/.*\.json: could not be written .*freeing disk space, and"
        ):
            run_sweep(tmp_path, {}, two_stages(), work, Resources())
    records = read_records(tmp_path)
    assert set(records.by_hash) == set(calls[:3])
    assert records.faults == []
    assert len(run_sweep(tmp_path, {}, two_stages(), work, Resources()).by_hash) == 8


def test_one_process_at_a_time(tmp_path: Path) -> None:
    says = r"^output_dir=.*: another process is running this sweep"
    refused = pytest.raises(ValueError, match=says)
    with claim_folder(tmp_path, {}), refused, claim_folder(tmp_path, {}):
        pass
    with claim_folder(tmp_path, {}):
        pass


def test_two_sweeps_into_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    run_sweep(folder, {"seeds": 2}, two_stages(), work, Resources())
    with pytest.raises(ValueError, match=r"another config \(seeds: requested 5, found 2\).* copy "):
        run_sweep(folder, {"seeds": 5}, two_stages(5), work, Resources())
    file = folder / "sweep.json"
    file.write_text(file.read_text()[:10])
    with pytest.raises(ValueError, match=r"sweep\.json is not readable"):
        run_sweep(folder, {"seeds": 2}, two_stages(), work, Resources())
    # the remedies that the two messages name
    file.unlink()
    check_folder(folder, {"seeds": 2})
    shutil.copytree(folder / FOLDER, tmp_path / "copied" / FOLDER)
    check_folder(tmp_path / "copied", {"seeds": 5})


def test_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="is not the folder of a sweep"):
        run_sweep(tmp_path, {}, two_stages(), work, Resources())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_records_of_another_sweep_are_no_part_of_this_one(tmp_path: Path) -> None:
    run_sweep(tmp_path, {}, two_stages(), work, Resources())
    (tmp_path / "sweep.json").unlink()
    records = run_sweep(tmp_path, {}, two_stages(1), work, Resources())
    assert len(records.by_hash) == 6
    assert [fault.split(".")[:3] for fault in records.faults] == [
        ["sets", name, "final1"] for name in ("a", "b")
    ]


def test_two_runs_that_cannot_be_told_apart_are_refused() -> None:
    runs = {
        (task, "a"): [PlannedRun(task, "a", "trial", 0, Config(1, 1000))] for task in ("x", "y")
    }
    with pytest.raises(ValueError, match="y a and x a: the same run"):
        SweepPlan(runs)


def test_a_fault_is_not_packed_away(tmp_path: Path) -> None:
    run_sweep(tmp_path, {}, two_stages(), work, Resources())
    (tmp_path / "runs/broken.json").write_text("{")
    with pytest.raises(ValueError, match=r"not every record is readable: broken\.json"):
        pack(tmp_path)
    assert len(list((tmp_path / "runs").glob("*.json"))) == 9


def test_a_broken_line_is_one_fault(tmp_path: Path) -> None:
    run_sweep(tmp_path, {}, two_stages(), work, Resources())
    packed = pack(tmp_path)
    lines = packed.read_text().splitlines()
    packed.write_text("\n".join([*lines[:3], lines[3][:20], *lines[4:]]))
    records = read_records(tmp_path)
    assert len(records.by_hash) == 7
    assert [fault.split(":")[0] for fault in records.faults] == ["runs.jsonl line 4"]

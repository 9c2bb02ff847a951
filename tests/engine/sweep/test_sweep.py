"""Sweeps: the order of runs, what fails, is killed or continued, folders, shards and clusters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from sparse_attn.engine.sweep import run as sweep_run
from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.pool import environments
from sparse_attn.engine.sweep.records import Record, read_content
from sparse_attn.engine.sweep.run import claim_folder
from tests import commands
from tests.engine.sweep.inline import Inline, full_disk, write_record
from tests.engine.toy.__main__ import EXPERIMENT, ToySweep, main

HERE = Resources(gpus_per_run=0)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_run, "make_pool", Inline)


@pytest.fixture
def sweep(tmp_path: Path) -> ToySweep:
    return ToySweep(str(tmp_path / "sweep"))


def records(sweep: ToySweep) -> dict[str, Record]:
    """The records of a sweep by the names of its runs."""
    found = EXPERIMENT.plan(sweep).read(Path(sweep.output_dir)).values()
    return {f"{r.mapping} {r.stage} {r.index}": r for cell in found for r in cell}


@pytest.mark.usefixtures("inline")
def test_the_best_trial_is_run_with_every_seed(sweep: ToySweep) -> None:
    EXPERIMENT.search(sweep, HERE)
    assert [name.removeprefix("sets.") for name in Inline.order] == [
        *("plain.trial0", "diverges.trial0", "plain.trial1", "diverges.trial1"),
        *("plain.final0", "diverges.final0", "plain.final1", "diverges.final1"),
    ]
    found = records(sweep)
    assert {name: (r.status, r.config["rate"], r.config["seed"]) for name, r in found.items()} == {
        "plain trial 0": ("finished", 1.0, 1000),
        "plain trial 1": ("finished", 3.0, 1000),
        "plain final 0": ("finished", 3.0, 0),
        "plain final 1": ("finished", 3.0, 1),
        "diverges trial 0": ("finished", 1.0, 1000),
        "diverges trial 1": ("diverged", 3.0, 1000),
        "diverges final 0": ("finished", 1.0, 0),
        "diverges final 1": ("finished", 1.0, 1),
    }
    assert found["diverges trial 1"].error == "the loss is NaN"
    content = json.loads((Path(sweep.output_dir) / "sweep.json").read_text())
    assert content == {"format": 1, **sweep.content()}
    EXPERIMENT.search(sweep, HERE)
    assert Inline.order == []


@pytest.mark.usefixtures("inline")
def test_a_run_leaves_its_results_and_no_weights(sweep: ToySweep) -> None:
    EXPERIMENT.search(sweep, HERE)
    for folder in (path for path in Path(sweep.output_dir, "runs").iterdir() if path.is_dir()):
        assert {path.name for path in folder.iterdir()} == {"config.json", "results.json"}


@pytest.mark.usefixtures("inline")
def test_the_bar_tells_what_runs_and_how_long_it_takes(
    sweep: ToySweep, capsys: pytest.CaptureFixture[str]
) -> None:
    EXPERIMENT.search(sweep, HERE)
    said = capsys.readouterr()
    assert "running=sets plain trial 0" in said.err
    assert "8/8" in said.err
    assert "sets plain final 0: score 3" in said.out
    assert said.out.endswith(f"next: sparse-attn toy report {sweep.output_dir}\n")


@pytest.mark.usefixtures("inline")
def test_what_fails_shows_the_end_of_its_log_and_is_run_again(
    sweep: ToySweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = replace(sweep, mappings=["plain", "fails"])
    (tmp_path / "broken").touch()
    with pytest.raises(SystemExit, match="2 runs failed; run the same command to retry them"):
        EXPERIMENT.search(sweep, HERE)
    said = capsys.readouterr().out
    assert "failed: sets fails trial 0; the end of " in said
    assert "RuntimeError: the graphics card fell out" in said
    # the finals of what has no trials wait
    lost = {name: r for name, r in records(sweep).items() if name.startswith("fails")}
    assert [record.status for record in lost.values()] == ["failed"] * 2
    assert "the graphics card fell out" in str(lost["fails trial 0"].error)
    (tmp_path / "broken").unlink()
    EXPERIMENT.search(sweep, HERE)
    assert len(Inline.order) == 4
    found = records(sweep)
    assert len(found) == 8
    assert (found["fails trial 0"].results or {})["resumed"]  # from its checkpoint, if it had one


@pytest.mark.slow
def test_a_sweep_that_is_killed_ends_its_runs_and_continues(
    sweep: ToySweep, tmp_path: Path
) -> None:
    given = ["--output_dir", sweep.output_dir, "--mappings", "[sleeps]", "--seeds", "1"]
    command = [sys.executable, "-m", "tests.engine.toy", "sweep", *given]
    with subprocess.Popen(command, cwd=commands.ROOT, stderr=subprocess.PIPE) as process:
        weights = Path(sweep.output_dir).rglob
        commands.wait_for(lambda: [*weights("weights")], process)
        runs = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert runs
    assert not psutil.wait_procs(runs, timeout=60)[1], "a run outlived the sweep"
    again = commands.run(*command[1:], "--dry_run")
    assert again.stdout.startswith("runs: 3 of 3 are due\n"), again.stderr


@pytest.mark.slow
def test_ctrl_c_is_one_line(sweep: ToySweep) -> None:
    given = ["--output_dir", sweep.output_dir, "--mappings", "[sleeps]"]
    command = [sys.executable, "-m", "tests.engine.toy", "sweep", *given]
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "cwd": commands.ROOT}
    with subprocess.Popen(command, **options, start_new_session=True) as process:
        weights = Path(sweep.output_dir).rglob
        commands.wait_for(lambda: [*weights("weights")], process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        last = process.stderr.read().splitlines()[-1]
    assert last == "stopped; run the same command to continue"


@pytest.mark.slow
@pytest.mark.parametrize("address", [None, "local"], ids=["here", "ray"])
def test_runs_are_commands_with_their_share_of_the_machine(
    address: str | None, sweep: ToySweep, tmp_path: Path
) -> None:
    if address is not None:
        pytest.importorskip("ray", reason="needs Ray: pip install -e '.[ray]'")
    module = tmp_path / "mine.py"
    module.write_text("print('imported by the run')")
    given = ["--output_dir", sweep.output_dir, "--gpus_per_run", "0", "--import", module]
    where = [] if address is None else ["--address", address]
    done = commands.run("-m", "tests.engine.toy", "sweep", *given, *where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"report {sweep.output_dir} --import {module}\n")
    found = [record.results for record in records(sweep).values() if record.results]
    assert len(found) == 7
    if address is None:
        assert {r["OMP_NUM_THREADS"] for r in found} == {"1"}
    assert {r["CUDA_VISIBLE_DEVICES"] for r in found} == {""}
    logs = [path.read_text() for path in Path(sweep.output_dir).rglob("*.log")]
    assert all("imported by the run\none line of the run\n" in log for log in logs)


@pytest.mark.usefixtures("inline")
def test_an_error_comes_before_the_first_run(sweep: ToySweep) -> None:
    with pytest.raises(ValueError, match="unknown on sets: mapping=unknown: expected another"):
        EXPERIMENT.search(replace(sweep, mappings=["plain", "unknown"]), HERE)
    assert not Path(sweep.output_dir).exists()


@pytest.mark.usefixtures("inline")
def test_two_sweeps_into_one_folder_do_not_mix(sweep: ToySweep, tmp_path: Path) -> None:
    EXPERIMENT.search(sweep, HERE)
    with pytest.raises(ValueError, match=r"another config \(seeds: requested 5, found 2\).* copy "):
        EXPERIMENT.search(replace(sweep, seeds=5), HERE)
    # the remedy: what both have is not run again
    other = replace(sweep, seeds=3, output_dir=str(tmp_path / "other"))
    Path(other.output_dir).mkdir()
    (Path(sweep.output_dir) / "runs").rename(Path(other.output_dir) / "runs")
    EXPERIMENT.search(other, HERE)
    assert [name.split(".")[2] for name in Inline.order] == ["final2", "final2"]
    (Path(other.output_dir) / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match=r"sweep\.json is not readable"):
        EXPERIMENT.search(other, HERE)


def test_a_folder_of_something_else_is_left_alone(sweep: ToySweep) -> None:
    Path(sweep.output_dir).mkdir()
    (Path(sweep.output_dir) / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="is not the folder of a sweep"):
        EXPERIMENT.search(sweep, HERE)
    assert os.listdir(sweep.output_dir) == ["thesis.tex"]


def test_one_process_at_a_time_for_each_cell(tmp_path: Path) -> None:
    a, b = [("sets", "a")], [("sets", "b")]
    refused = pytest.raises(ValueError, match=r"^output_dir=.*: another process is running this")
    with claim_folder(tmp_path, {}, [*a, *b]), refused, claim_folder(tmp_path, {}, b):
        pass
    with claim_folder(tmp_path, {}, a), claim_folder(tmp_path, {}, b):
        pass


def test_shards_that_start_together_do_not_disturb_each_other(tmp_path: Path) -> None:
    def claim(shard: int) -> None:
        for _ in range(20):
            with claim_folder(tmp_path, {}, [("sets", str(shard))]):
                pass

    processes = [get_context("fork").Process(target=claim, args=(k,)) for k in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6


@pytest.mark.usefixtures("inline")
def test_shards_do_the_sweep_together(sweep: ToySweep) -> None:
    sweep = replace(sweep, mappings=["plain", "diverges", "third"])
    done = []
    for shard in range(2):
        EXPERIMENT.search(sweep, Resources(num_shards=2, shard=shard))
        done += Inline.order
    assert len(done) == len(set(done)) == len(records(sweep)) == 12
    EXPERIMENT.search(sweep, HERE)
    assert Inline.order == []


@pytest.mark.usefixtures("inline")
def test_older_records_in_one_file_are_read_and_continued(sweep: ToySweep, tmp_path: Path) -> None:
    EXPERIMENT.search(sweep, HERE)
    found = list(records(sweep).values())
    old = replace(sweep, output_dir=str(tmp_path / "old"))
    Path(old.output_dir).mkdir()
    lost = replace(found[-1], status="failed", error="lost", results=None)
    for record in (*found[:-1], lost):
        write_record(Path(old.output_dir), record)
    assert records(old).keys() == records(sweep).keys()
    EXPERIMENT.search(old, HERE)
    assert len(Inline.order) == 1  # a failed run is repeated, and its new record counts
    assert {record.status for record in records(old).values()} == {"finished", "diverged"}
    # lines of runs that are not part of the sweep are none of its records
    assert len(records(replace(old, seeds=1))) == 6


@pytest.mark.parametrize("change", ["cut", "edited", "list", "unknown"])
def test_a_broken_line_of_records_is_named(change: str, sweep: ToySweep, tmp_path: Path) -> None:
    run = EXPERIMENT.plan(sweep).first["sets", "plain"][0]
    text = json.dumps(asdict(run.record(status="finished", results={"score": 1.0})))
    broken = {
        "cut": text[:-9],
        "edited": text.replace('"rate": 1.0', '"rate": 2.0'),
        "list": "[]",
        "unknown": text.replace('"index"', '"place"'),
    }[change]
    Path(sweep.output_dir).mkdir()
    (Path(sweep.output_dir) / "runs.jsonl").write_text(f"{text}\n{broken}\n")
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 2: "):
        records(sweep)


@pytest.mark.usefixtures("inline")
def test_a_full_disk_stops_the_sweep_and_loses_nothing(
    sweep: ToySweep, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["sweep", "--output_dir", sweep.output_dir]
    with full_disk(20), pytest.raises(SystemExit, match=r"^1$"):
        main(given)
    assert "could not be written" in capsys.readouterr().err
    main(given)
    assert len(records(sweep)) == 8


def test_folders_without_a_sweep(tmp_path: Path) -> None:
    says = "nowhere: no such folder; name the output_dir of a sweep, which `sparse-attn glue sweep`"
    with pytest.raises(ValueError, match=says):
        read_content(tmp_path / "nowhere", "sparse-attn glue")
    (tmp_path / "one").mkdir()
    (tmp_path / "one/sweep.json").touch()
    with pytest.raises(ValueError, match=r"has no sweep\.json; .*writes; sweeps below it: one"):
        read_content(tmp_path, "sparse-attn glue")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cpus_per_run": 10_000}, "cpus_per_run=10000: this machine has"),
        ({"cpus_per_run": 0}, "cpus_per_run=0: expected at least 1"),
        ({"gpus_per_run": 2}, "gpus_per_run=2: expected a number in"),
        ({"num_shards": 2, "shard": 2}, "shard=2: expected 0 to 1"),
    ],
)
def test_resources_that_there_are_not(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        environments(Resources(**asked))


@pytest.mark.parametrize(
    ("visible", "share", "devices"),
    [
        (None, None, ["0", "1"]),
        (None, 0.5, ["0", "1", "0", "1"]),
        ("3", 0.1, ["3"] * 4),
        ("2,3", 0, [""] * 4),
    ],
)
def test_runs_share_the_gpus(
    visible: str | None, share: float | None, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 if visible is None else len(visible.split(","))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with nullcontext() if visible is None else monkeypatch.context() as patch:
        if patch is not None:
            patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = environments(Resources(gpus_per_run=share))
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in found] == devices

"""Whole sweeps of tiny models: killed, continued, and given bad input."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from glue.__main__ import EXPERIMENT, main
from glue.plan import make_plan
from sparse_attn.engine.experiment import execute
from sparse_attn.engine.sweep import run as sweep_run
from sparse_attn.engine.sweep.plan import PlannedRun
from sparse_attn.engine.sweep.records import FOLDER, Record, read_records
from tests import commands
from tests.engine.sweep.inline import Inline

# what another clock, machine or memory changes
MEASURED = ("seconds", "startup_seconds", "examples_per_second", "peak_memory_mib", "device")


def config(model: Path, data: Path, output: Path) -> dict[str, Any]:
    """2 tasks x 3 mappings x (1 trial + 2 seeds)."""
    return {
        "model": str(model),
        "data_dir": str(data),
        "output_dir": str(output),
        "tasks": {"RTE": None, "STS-B": {"epochs": 1, "train_rows": 16}},
        "learning_rates": [1e-3],
        "trials": 1,
        "seeds": 2,
        "mappings": {
            "softmax": {"name": "softmax"},
            "r-softmax": {
                "name": "r-softmax",
                "params": {"r": [0.3]},
                "schedule": {"parameter": "r", "initial": 0.0},
            },
            "taylor": {
                "name": "mixed-taylor-softmax",
                "schedule": {"parameter": "mix", "initial": 0.0},
            },
        },
        "train": {"epochs": 2, "batch_size": 8},
    }


@pytest.fixture
def given(tiny_model: Path, glue_folder: Path, tmp_path: Path) -> dict[str, Any]:
    return config(tiny_model, glue_folder, tmp_path / "sweep")


def arguments(given: dict[str, Any], *more: str) -> list[str]:
    """The command line, with the config in a file beside the sweep's folder."""
    file = Path(given["output_dir"]).with_suffix(".yaml")
    file.write_text(yaml.safe_dump(given))
    return ["sweep", "--config", str(file), *more]


def undisturbed(given: dict[str, Any]) -> dict[str, Record]:
    """Every run one after the other in this process, without a pool or files."""
    parsed = EXPERIMENT.program.parse(arguments(given))[1]
    plan, done = make_plan(parsed[0]), {}
    while due := list(plan.due(done)):
        for run in due:
            done[run.hash] = run.record(**execute(EXPERIMENT.name, run))
    assert len(done) == plan.expected(done)
    return done


def measured_apart(record: Record) -> dict[str, Any]:
    results = record.results or {}
    kept = {key: value for key, value in results.items() if key not in MEASURED}
    return {**vars(record), "results": kept}


@pytest.mark.timeout(900)
@pytest.mark.soak  # tests/trust/test_kill.py kills a sweep in `make slow`
def test_killed_sweep_gives_the_records_of_an_undisturbed_one(given: dict[str, Any]) -> None:
    del given["mappings"]["taylor"]
    folder = Path(given["output_dir"])
    command = [sys.executable, "-m", "glue", *arguments(given)]
    settings = {"cwd": commands.ROOT, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}

    def records() -> int:
        return len(list((folder / FOLDER).glob("*.json")))

    def workers() -> list[psutil.Process]:
        found = []
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found += [child] if "spawn_main" in " ".join(child.cmdline()) else []
        return found

    def kill_worker() -> bool:
        with suppress(psutil.NoSuchProcess, IndexError):
            workers()[0].kill()
            return True
        return False

    def failed() -> bool:
        return any(r.status == "failed" for r in read_records(folder).by_hash.values())

    with subprocess.Popen(command, **settings, stderr=subprocess.PIPE) as process:
        # a worker first: its run is recorded as failed, and the sweep goes on
        commands.wait_for(lambda: records() >= 2, process)
        commands.wait_for(kill_worker, process)
        commands.wait_for(failed, process)
        count = records()
        commands.wait_for(lambda: records() >= count + 3, process)
        alive = commands.wait_for(workers, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = read_records(folder)
    assert before.faults == []
    assert 6 <= len(before.by_hash) < 12
    assert not psutil.wait_procs(alive, timeout=60)[1], "a run outlived the sweep"

    # the same command; the failed run is done again
    again = commands.run(*command[1:])
    assert again.returncode == 0, again.stderr
    assert "12/12" in again.stderr
    after = read_records(folder)
    whole = undisturbed(given)
    assert after.faults == []
    assert after.by_hash.keys() == whole.keys()
    for key, record in whole.items():
        assert measured_apart(after.by_hash[key]) == measured_apart(record)
        if key in before.by_hash and before.by_hash[key].status == "finished":
            assert after.by_hash[key] == before.by_hash[key], "a finished run was run again"


def test_a_sweep_counts_what_diverged(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep_run, "make_pool", Inline)
    given |= {"learning_rates": [1e30], "tasks": {"RTE": None}}
    main(arguments(given))
    assert "3 diverged\n" in capsys.readouterr().out
    records = read_records(Path(given["output_dir"])).by_hash.values()
    assert all("training has diverged" in str(record.error) for record in records)


@pytest.mark.slow
def test_a_dry_run_tells_runs_time_and_disk(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sparse_attn.engine.sweep.forecast.make_pool", Inline)
    main(arguments(given, "--dry_run"))
    runs, *by_mapping, time, disk = capsys.readouterr().out.splitlines()
    assert runs == "runs: 18 of 18 are due"
    assert "  softmax: RTE 3, STS-B 3" in by_mapping
    assert re.fullmatch(
        r"time: about \d+:\d\d:\d\d, (one run after another|\d+ runs at once)", time
    )
    assert re.match("disk: about 2 MB of records, no weights; .* GB are free", disk)
    records = Path(given["output_dir"]) / "runs"
    assert not records.parent.exists()

    records.mkdir(parents=True)
    (records / "cut.json").write_text('{"hash":')
    main(arguments(given, "--dry_run"))
    left_out, *again = capsys.readouterr().out.splitlines()
    assert left_out.startswith("Left out: cut.json: ")
    assert again[:-2] == [runs, *by_mapping]


def test_a_smoke_run_is_another_run(given: dict[str, Any]) -> None:
    whole, few = (
        next(make_plan(EXPERIMENT.program.parse(arguments({**given, **more}))[1][0]).due({}))
        for more in ({}, {"limit": 12})
    )
    assert "limit" not in whole.record(status="failed").config
    assert whole.hash != few.hash
    assert set(execute(EXPERIMENT.name, few)["results"]["rows"].values()) == {11, 1}


def test_what_failed_twice_keeps_its_finals_waiting_until_the_next_start(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep_run, "make_pool", Inline)

    def executed(name: str, run: PlannedRun) -> dict[str, Any]:
        if run.stage == "trial" and not good:
            raise RuntimeError("lost")
        return {"status": "finished", "results": {"score": 0.5}}

    monkeypatch.setattr("sparse_attn.engine.experiment.execute", executed)
    good = False
    with pytest.raises(SystemExit, match="some runs failed; run the same command to retry"):
        main(arguments(given))
    assert "6 failed" in capsys.readouterr().out
    assert len(read_records(Path(given["output_dir"])).by_hash) == 6
    good = True
    main(arguments(given))
    assert "18 finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"protocol": "unfair"}, "protocol"),
        ({"data_dir": "/nowhere"}, "nowhere"),
        ({"model": "pkg://no_such_package/model"}, "'no_such_package' is not installed"),
        ({"tasks": {"RTE": {"train_rows": 1000}}}, "train_rows=1000: the training set has only 24"),
        ({"selection": 0.01}, "selection=0.01: of 24 training rows this holds out 0"),
        ({"cpus_per_run": 1000}, "cpus_per_run=1000: this machine has"),
        ({"gpus_per_run": 2}, "gpus_per_run=2.0: expected a number"),
        (
            {"mappings": {"softmax": {"name": "softmax"}, "x": {"name": "nothing"}}},
            "mappings.x: .*unknown",
        ),
        (
            {"mappings": {"softmax": {"name": "softmax"}, "x": {
                "name": "r-softmax", "params": {"r": [0.1, 1.5]},
                "schedule": {"parameter": "r", "initial": 0.0}}}},
            r"mappings.x: r=1.5 is out of range",
        ),
        (
            {"mappings": {"softmax": {"name": "softmax"}, "x": {
                "name": "r-softmax", "layers": [7],
                "schedule": {"parameter": "r", "initial": 0.0}}}},
            "mappings.x: .* no layer 7",
        ),
    ],
)  # fmt: skip
def test_bad_input_before_the_first_run(
    change: dict[str, Any], says: str, given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    given.update(change)
    with pytest.raises(SystemExit) as stop:
        main(arguments(given))
    message = f"{stop.value.code} {capsys.readouterr().err}"  # and bars of what was loaded
    assert "Traceback" not in message
    assert re.search(says, message), message
    assert not list(Path(given["output_dir"]).rglob("*.json"))

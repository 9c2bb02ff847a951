"""`make gpu` without a GPU: a rehearsal that is killed; deadlines, crashes and the verdict."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import programs, sanity, verdict
from benchmarks.gpu.runner import Progress, run_stage
from benchmarks.gpu.stage import Setup
from benchmarks.gpu.stages import STAGES
from tests.benchmarks.fake_stage import fake
from tests.kernels.problems import Problem

ROOT = Path(__file__).parents[2]


def rehearse(out, **options):
    command = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--out", str(out)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.soak
def test_a_killed_rehearsal_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    out = tmp_path / "out"
    with rehearse(out) as first:
        assert any(line.startswith("[sanity 1/2]") for line in first.stdout)
        first.send_signal(signal.SIGKILL)
    before = json.loads((out / "gpu.json").read_text())["stages"]["sanity"]["cases"]
    assert before
    assert not (out / "verdict.md").exists()

    with rehearse(out) as second:
        printed, _ = second.communicate(timeout=250)
    assert second.returncode == 0
    assert printed.endswith((out / "verdict.md").read_text())
    assert printed.endswith("Nothing is left.\n")
    stages = json.loads((out / "gpu.json").read_text())["stages"]
    assert stages["sanity"]["cases"].items() >= before.items()
    assert list(stages) == list(STAGES)
    results = {case: r for stage in stages.values() for case, r in stage["cases"].items()}
    assert [case for case, result in results.items() if "failed" in result] == []
    assert results["copy"]["GB/s"] > 0
    assert results["tests/kernels/test_direct.py"]["passed"] > 0
    record = json.loads((out / "attention-cpu.json").read_text())
    names = ["N=128", "BERT-tiny", "causal N=8"]
    assert [case["name"] for case in record["cases"]] == names
    assert len(list(out.iterdir())) <= 8


def test_the_deadlines_are_below_40_minutes():
    assert sum(stage.deadline for stage in STAGES.values()) < 40 * 60
    assert all(stage.patience <= stage.deadline for stage in STAGES.values())


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path, rehearse=True)


def results(setup):
    return json.loads((setup.out / "gpu.json").read_text())["stages"]["fake"]["cases"]


def test_cases_that_raise_hang_and_crash_do_not_stop_the_others(setup):
    stage = fake("raises", "dies", "hangs", "loses the GPU", "fine", parallel=True)
    run_stage(stage, setup, Progress(setup), time.time() + 250)
    found = results(setup)
    assert found["fine"]["given"] == stage.patience
    assert found["raises"]["failed"] == "ValueError: wrong by 0.5"
    assert 'raise ValueError("wrong by 0.5")' in "".join(found["raises"]["output"])
    assert found["dies"]["failed"].endswith("exit code -9: killed, for example out of memory")
    assert found["hangs"]["failed"] == "not finished in time"
    assert "behave" in "".join(found["hangs"]["output"])
    assert found["loses the GPU"]["failed"] == "the GPU was lost"


def test_what_a_call_cuts_off_runs_once_more(setup):
    stage = fake("hangs", "fine")
    for number in range(2):
        progress = Progress(setup)
        run_stage(stage, setup, progress, time.time() + 1)
        assert progress.of(stage)["cut"] == ["hangs"]
        assert list(results(setup)) == ["hangs"] * number
        assert progress.left(stage, setup) == ["hangs", "fine"][number:]
    run_stage(stage, setup, Progress(setup), time.time() + 60)
    assert list(results(setup)) == ["hangs", "fine"]


def test_nothing_starts_after_the_deadline_of_a_stage(setup):
    stage = fake("hangs", "fine", deadline=1)
    progress = Progress(setup)
    run_stage(stage, setup, progress, time.time() + 60)
    assert results(setup)["hangs"]["failed"] == "not finished in time"
    assert Progress(setup).left(stage, setup) == []
    assert "- fake: 1 failed, 1 without time; " in verdict.page(setup, progress, [stage])


def test_the_compile_stage_starts_again_without_its_cache(setup, monkeypatch):
    progress = Progress(setup)
    progress.of(STAGES["compile"])["cases"]["N=128: ours entmax"] = {}
    progress.write()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(setup.out))
    assert Progress(setup).of(STAGES["compile"])["cases"]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(setup.out / "missing"))
    assert not Progress(setup).of(STAGES["compile"])["cases"]


def test_records_of_other_code_are_refused(setup):
    progress = Progress(setup)
    progress.record["environment"] |= {"commit": "abc", "device": "NVIDIA H200"}
    progress.write()
    with pytest.raises(ValueError, match="with another device and commit; remove it, or use"):
        Progress(setup)


def test_outputs_start_as_nan_and_calls_are_compared(monkeypatch):
    small, true = Problem("softmax", queries=4, keys=4, dim=8), sanity.solve
    sanity.check(small, torch.float16, "cpu")
    calls = iter(range(9))
    noisy = lambda *call: {**true(*call), "output": torch.tensor(next(calls))}  # noqa: E731
    monkeypatch.setattr(sanity, "solve", noisy)
    with pytest.raises(AssertionError, match="output: two calls differ"):
        sanity.check(small, torch.float16, "cpu")
    with sanity.poisoned():
        assert torch.empty(3).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


RIGHT_AND_WRONG = """
import time
def test_right(): pass
def test_wrong(): assert 1 == 2, "not equal"
"""


@pytest.mark.parametrize(
    ("more", "passed", "failed", "tests"),
    [
        ("", 1, "exit code 1", "FAILED test_x.py::test_wrong - AssertionError: not equal"),
        ("def test_slow(): time.sleep(60)", 1, "not finished in 15 s", "FAILED test_x.py::test_w"),
        ("import missing", 0, "exit code 1", "E   ModuleNotFoundError: No module named 'missing'"),
    ],
)
def test_tests_that_fail_are_named(more, passed, failed, tests, setup, monkeypatch):
    monkeypatch.setattr(programs, "ROOT", setup.out)
    (setup.out / "test_x.py").write_text(RIGHT_AND_WRONG + more)
    found = programs.run_tests(setup, "test_x.py", 15)
    assert found["passed"] == passed
    assert found["failed"] == failed
    assert found["tests"][0].startswith(tests)


@pytest.mark.parametrize(
    ("end", "failed"), [('shift 4\n"$@"', None), ("exit 9", "exit code 9")], ids=["clean", "found"]
)
def test_compute_sanitizer(end, failed, setup, monkeypatch):
    tool = setup.out / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\necho "$@"\n{end}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(setup.out), prepend=os.pathsep)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = programs.sanitize(setup, "racecheck", 60)
    assert found.get("failed") == failed
    assert found["output"][0].startswith("--tool racecheck --error-exitcode 9 ")


def row(name, ratios, which="forward+backward", cache="warm"):
    to = {base: {"median": ratio} for base, ratio in ratios.items()}
    fixed = {"ours": name.startswith("ours"), "reason": None}
    return {"name": name, "pass": which, "cache": cache, "to": to, **fixed}


def test_verdict(setup):
    cases = [
        ("attention", "N=128", [
            row("SDPA with a mask", {"SDPA": 2.0}),
            row("ours entmax", {"SDPA": 1.25}),
            {**row("ours relu", {}), "reason": "wrong: differs by 3"},
            row("ours r-softmax", {"SDPA": 1.41}),
            row("ours r-softmax", {"SDPA": 9.0}, cache="cold"),
            row("ours r-softmax", {"SDPA": 9.0}, which="forward"),
        ]),
        ("step", "BERT-base", [row("ours r-softmax", {"SDPA": 1.02}, "step", "")]),
        ("causal", "causal N=4096", [row("ours entmax", {"AdaSplash v2": 1.5, "SDPA": 3.0})]),
    ]  # fmt: skip
    content = [{"group": group, "name": name, "rows": rows} for group, name, rows in cases]
    (setup.out / "attention-cpu.json").write_text(json.dumps({"cases": content}))
    text = verdict.page(setup, Progress(setup), [STAGES["sanity"]])
    targets = 2 * len(verdict.AT_MOST) + 2
    assert text.startswith(f"# CPU: targets 2 met, 2 missed, {targets - 4} not measured\n")
    for line in (
        "| entmax | 1.25 | 1.25 (0.625) met | not measured |",
        "| r-softmax | 1.4 | 1.41 (0.705) missed | not measured |",
        "| sigsoftmax | 1.05 | not measured | not measured |",
        "| ours r-softmax | 1.02 met |",
        "| causal N=4096 | 1.5 missed | 3 |",
        "- N=128, ours relu: wrong: differs by 3",
        "- sanity: not run; 0 s",
        "Left: sanity; run the same command again.",
    ):
        assert line in text.splitlines()

"""`make gpu` without a GPU: a rehearsal that is killed; deadlines, crashes and the verdict."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import record
from benchmarks.attention import cases
from benchmarks.attention.contestants import MAPPINGS, contestants
from benchmarks.gpu import programs, sanity, suites, tune, verdict
from benchmarks.gpu.runner import StageProgress, make_pool, run_stage
from benchmarks.gpu.stage import Setup
from benchmarks.gpu.stages import STAGES
from sparse_attn.kernels.triton import tuned
from tests.benchmarks.fake_stage import fake
from tests.kernels.problems import Problem

ROOT = Path(__file__).parents[2]
REHEARSAL, REAL = Setup(Path(), rehearse=True), Setup(Path())


def rehearse(out, **options):
    command = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--out", str(out)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.soak
def test_a_killed_rehearsal_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    out = tmp_path / "out"
    with rehearse(out) as first:
        assert any(line.startswith("[sanity 1/4]") for line in first.stdout)
        first.send_signal(signal.SIGKILL)
    before = json.loads((out / "gpu-cpu.json").read_text())["stages"]["sanity"]["cases"]
    assert before
    assert not (out / "verdict.md").exists()

    with rehearse(out) as second:
        printed, _ = second.communicate(timeout=250)
    assert second.returncode == 0
    assert printed.endswith((out / "verdict.md").read_text())
    assert printed.endswith("Nothing is left.\n")
    stages = json.loads((out / "gpu-cpu.json").read_text())["stages"]
    assert stages["sanity"]["cases"].items() >= before.items()
    assert list(stages) == list(STAGES)
    results = {case: r for stage in stages.values() for case, r in stage["cases"].items()}
    assert [case for case, result in results.items() if "failed" in result] == []
    assert results["copy"]["GB/s"] > 0
    assert results["tests marked gpu"]["passed"] > 0
    assert set(results["softmax medium keys"]["ms"]) > {"default"}
    found = json.loads((out / "attention-cpu.json").read_text())
    names = [*suites.attention(REHEARSAL), *suites.steps(REHEARSAL), *suites.peers(REHEARSAL)]
    assert [case["name"] for case in found["cases"]] == names
    assert len(list(out.iterdir())) <= 8


def test_the_deadlines_are_below_40_minutes():
    assert sum(stage.deadline for stage in STAGES.values()) < 40 * 60
    assert all(stage.patience <= stage.deadline for stage in STAGES.values())


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path, rehearse=True)


def run(stage, setup, progress, ends):
    with make_pool(setup) as pool:
        run_stage(stage, setup, progress, ends, pool)


def results(setup):
    return json.loads((setup.out / "gpu-cpu.json").read_text())["stages"]["fake"]["cases"]


@pytest.mark.slow
def test_cases_that_raise_hang_and_crash_do_not_stop_the_others(setup):
    # a deadline that a busy machine keeps, too
    stage = fake("raises", "dies", "hangs", "loses the GPU", "fine", parallel=True, deadline=280.0)
    run(stage, setup, StageProgress(setup), time.time() + 280)
    found = results(setup)
    assert found["fine"]["given"] == stage.patience
    assert found["raises"]["failed"] == "ValueError: wrong by 0.5"
    assert 'raise ValueError("wrong by 0.5")' in "".join(found["raises"]["output"])
    assert found["dies"]["failed"].endswith("exit code -9: killed, for example out of memory")
    assert found["hangs"]["failed"] == "not finished in time"
    assert "behave" in "".join(found["hangs"]["output"])
    assert found["loses the GPU"]["failed"] == "the GPU was lost"


@pytest.mark.slow
def test_what_a_call_cuts_off_runs_once_more(setup):
    stage = fake("hangs", "fine")
    for number in range(2):
        progress = StageProgress(setup)
        run(stage, setup, progress, time.time() + 1)
        assert progress.of(stage)["cut"] == ["hangs"]
        assert list(results(setup)) == ["hangs"] * number
        assert progress.left(stage, setup) == ["hangs", "fine"][number:]
    run(stage, setup, StageProgress(setup), time.time() + 60)
    assert list(results(setup)) == ["hangs", "fine"]


@pytest.mark.slow
def test_nothing_starts_after_the_deadline_of_a_stage(setup):
    stage = fake("hangs", "fine", deadline=1)
    progress = StageProgress(setup)
    run(stage, setup, progress, time.time() + 60)
    assert results(setup)["hangs"]["failed"] == "not finished in time"
    assert StageProgress(setup).left(stage, setup) == []
    assert "- fake: 1 failed, 1 without time; " in verdict.page(setup, progress, [stage])


@pytest.mark.slow
def test_what_is_not_finished_goes_on_in_the_next_call(setup):
    stage = fake("goes on", "fine")
    for number in range(2):
        progress = StageProgress(setup)
        run(stage, setup, progress, time.time() + 60)
        assert progress.left(stage, setup) == ["goes on"][number:]
    assert list(results(setup)) == ["goes on", "fine"]


@pytest.mark.slow
def test_cases_one_after_another_share_a_process(setup):
    stage = fake("process", "process again")
    run(stage, setup, StageProgress(setup), time.time() + 60)
    one, other = (found["process"] for found in results(setup).values())
    assert one == other


def test_candidates_are_compiled_again_without_their_cache(setup, monkeypatch):
    progress = StageProgress(setup)
    progress.of(STAGES["candidates"])["cases"]["softmax medium keys"] = {}
    progress.write()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(setup.out))
    assert StageProgress(setup).of(STAGES["candidates"])["cases"]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(setup.out / "missing"))
    assert not StageProgress(setup).of(STAGES["candidates"])["cases"]


def test_the_main_answer_comes_first():
    assert list(STAGES)[:3] == ["sanity", "attention", "step"]
    assert sum(STAGES[name].deadline for name in ("sanity", "attention", "step")) < 7 * 60
    checked = {case.partition(": ")[0] for case in sanity.cases(REAL)}
    assert checked >= set(MAPPINGS)
    assert suites.attention(REAL) == ["N=128", "N=512", "MRPC", "causal N=8192"]
    assert suites.steps(REAL) == ["BERT-base", "BERT-base MRPC"]
    assert suites.compiled(REAL) == ["compiled BERT-base"]
    assert suites.more(REAL)[0] == suites.LONG_TARGET
    steps = {*suites.steps(REAL), *suites.compiled(REAL)}
    measured = {*suites.attention(REAL), *steps, *suites.more(REAL)}
    assert measured == set(suites.every(REAL))


def test_each_peer_has_a_case_of_its_own():
    gpu = torch.device("cuda")
    for name in suites.MAIN:
        case = suites.every(REAL)[name]
        found = [c.name for c in suites.chosen(case, "", contestants(case, gpu))]
        assert found[0] == "SDPA"
        assert all(c.startswith(("SDPA", "ours ")) and "[" not in c for c in found)
        assert {f"ours {mapping}" for mapping in MAPPINGS} <= {*found}
    for title, peer in suites.PEERS:
        case = suites.every(REAL)[title]
        found = suites.chosen(case, peer, contestants(case, gpu))
        assert [c.name for c in found if c.name == peer]
        assert all(c.ours or c.name in ("SDPA", peer) for c in found)
        assert any(c.ours for c in found)


def test_settings_are_written_and_read():
    for candidates in tune.CANDIDATES.values():
        for setting in candidates:
            assert tune.parsed(tune.written(setting)) == setting


def test_the_best_settings_become_the_module_of_the_package(setup, monkeypatch):
    assert tune.module(tuned.TABLES) == Path(tuned.__file__).read_text(encoding="utf-8")
    before = {
        "first.json": {
            ("keys", "softmax", 128, "medium"): (64, 64),
            ("keys", "free", 128, "long"): (64, 32),
        },
        "gone.json": {("keys", "softmax", 128, "long"): (64, 64)},
    }
    monkeypatch.setattr(tuned, "TABLES", {"NVIDIA H200": ((9, 0), before)})
    fast, same = "64x64 w4 s2 r168", "64x64 w4 s2"
    found = {
        f"{name} {row} keys": {"key": ["keys", name, 128, row], "ms": {"default": 1.0, **times}}
        for name, row, times in (
            ("softmax", "medium", {fast: 0.6}),
            ("softmax", "long", {fast: 0.98}),
            ("threshold", "medium", {same: 0.97}),
            ("r-softmax", "medium", {same: 0.98}),
        )
    }
    found["softmax long keys"]["default"] = "64x64 w4 s3"
    found["free long keys"] = {"failed": "not finished in time"}
    environment = {"device": "NVIDIA H200", "capability": [9, 0]}
    measured = {"environment": environment, "stages": {"tune": {"cases": found}}}
    (setup.out / "tuned.py").write_text(tune.module(tune.tables_with(measured, "here.json")))
    made = runpy.run_path(str(setup.out / "tuned.py"))["TABLES"]
    assert made == {
        "NVIDIA H200": (
            (9, 0),
            {
                "first.json": {("keys", "free", 128, "long"): (64, 32)},
                "here.json": {
                    ("keys", "softmax", 128, "medium"): (64, 64, 4, 2, 168),
                    ("keys", "softmax", 128, "long"): (64, 64, 4, 3, None),
                    ("keys", "threshold", 128, "medium"): (64, 64, 4, 2, None),
                    ("keys", "r-softmax", 128, "medium"): (64, 64, 4, 2, None),
                },
            },
        )
    }


def test_candidates_that_differ_or_do_not_compile_are_told(setup, monkeypatch):
    def run_with(task):
        task.prepare()
        table = tune.settings.table_of(torch.device("cpu"))
        if any(setting.registers for setting in table.values()):
            raise RuntimeError("out of resource: registers")
        return (torch.full((2,), 1.0 + any(s.stages == 3 for s in table.values())),)

    before = tune.settings.table_of, tune.plan._PLANS
    monkeypatch.setattr(tune, "_run", run_with)
    monkeypatch.setattr(Setup, "device", torch.device("cpu"))
    monkeypatch.setattr(tune, "one_kernel", lambda *_: None)
    monkeypatch.setattr(cases, "cases", lambda *_, **__: [replace(tune.TINY, name="N=512")])
    found = tune.prepare(Setup(setup.out), "softmax medium keys", 60)
    assert found["failed"] == "64x64 w4 s3: not the default's result"
    assert found["not measured"]["64x64 w4 s2 r168"] == "RuntimeError: out of resource: registers"
    assert (tune.settings.table_of, tune.plan._PLANS) == before


def test_records_of_other_code_are_refused(setup):
    progress = StageProgress(setup)
    progress.record["environment"] |= {"commit": "abc"}
    progress.write()
    with pytest.raises(ValueError, match="with another commit; remove it, or use"):
        StageProgress(setup)


def test_the_commit_of_a_tree_without_git_is_told(monkeypatch):
    monkeypatch.setattr(record, "_git", lambda *_: None)
    monkeypatch.setenv(record.COMMIT, "abc")
    assert record.environment(torch.device("cpu"))["commit"] == "abc"
    monkeypatch.delenv(record.COMMIT)
    assert record.environment(torch.device("cpu"))["commit"] is None


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


TESTS = """
import time
def test_right(): pass
def test_wrong(): assert 1 == 2, "not equal"
"""


@pytest.fixture
def tests(setup, monkeypatch):
    """Runs tests of this source for so many seconds."""

    def run(source, seconds):
        (setup.out / "test_x.py").write_text(source)
        return programs.run_tests(setup, "", seconds)

    monkeypatch.setattr(programs, "ROOT", setup.out)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # the tests start workers of their own
    monkeypatch.setattr(programs, "test_files", lambda setup: ["test_x.py"])
    return run


@pytest.mark.slow
def test_tests_that_fail_are_named(tests):
    found = tests(TESTS, 60)
    assert (found["passed"], found["failed"]) == (1, "1 of 2 tests")
    assert found["tests"][0].startswith("test_x.py::test_wrong: ")
    assert "not equal" in found["tests"][0]
    assert "again" not in found


@pytest.mark.slow
def test_tests_go_on_where_they_were_cut_off(tests):
    found = tests(TESTS + "def test_slow(): time.sleep(60)", 20)
    assert (found["passed"], found["again"]) == (1, True)
    # tests with an outcome do not run again
    found = tests(TESTS.replace("pass", "1 / 0") + "def test_slow(): pass", 60)
    assert (found["passed"], found["failed"]) == (2, "1 of 3 tests")
    assert tests(TESTS, 60) == found


@pytest.mark.slow
def test_tests_that_cannot_be_imported_fail(tests):
    found = tests("import missing", 60)
    assert (found["passed"], found["failed"]) == (0, "exit code 1")
    assert "No module named 'missing'" in "".join(found["output"])


def test_a_process_that_lost_the_gpu_is_replaced(tests):
    lost = "def test_lost(): raise RuntimeError('CUDA error: an illegal memory access')\n"
    found = tests(f"import os\n{lost}def test_next(): pass", 60)
    assert (found["passed"], found["failed"]) == (1, "1 of 2 tests")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "failed"), [('shift 4\n"$@"', None), ("exit 9", "exit code 9")], ids=["clean", "found"]
)
def test_compute_sanitizer(end, failed, setup, monkeypatch):
    tool = setup.out / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\necho "$@"\n{end}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(setup.out), prepend=os.pathsep)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = programs.sanitize(setup, "racecheck", 200)
    assert found.get("failed") == failed
    assert found["output"][0].startswith("--tool racecheck --error-exitcode 9 ")


def row(name, ratio, which="forward+backward", base="SDPA"):
    to = {} if ratio is None else {base: {"median": ratio}}
    return {"name": name, "pass": which, "to": to, "ours": name[:4] == "ours", "reason": None}


def test_verdict(setup):
    cases = [
        ("attention", "N=128", [
            row("SDPA", 1.0),
            row("ours entmax", 1.57, "forward"),
            row("ours entmax", 1.25),
            {**row("ours relu", None), "reason": "wrong: differs by 3"},
            row("ours r-softmax", 1.41),
        ]),
        ("causal", "causal N=8192", [row("ours entmax", 2.7)]),
        ("causal", "causal N=16384", [row("ours entmax", 1.2, base="SDPA flash")]),
        ("step", "BERT-base", [row("ours r-softmax", 1.02, "step")]),
        ("step", "compiled BERT-base", [row("ours r-softmax", 1.09, "step")]),
        ("causal", "causal N=8192 beside AdaSplash v2", [
            row("ours entmax", 1.2, base="AdaSplash v2"),
        ]),
    ]  # fmt: skip
    content = [{"group": group, "name": name, "rows": rows} for group, name, rows in cases]
    (setup.out / "attention-cpu.json").write_text(json.dumps({"cases": content}))
    progress = StageProgress(setup)
    progress.of(STAGES["sanity"])["cases"] |= {"one": {}, "two": {"failed": "AssertionError"}}
    times = {"default": 2.0, "64x64 w4 s2": 1.5}
    progress.of(STAGES["tune"])["cases"]["softmax medium keys"] = {
        "best": "64x64 w4 s2",
        "ms": times,
    }
    text = verdict.page(setup, progress, [STAGES["sanity"], STAGES["step"]])
    lines = text.splitlines()
    assert lines[0] == "# CPU: 1 of 2 checks passed; targets 3 met, 3 missed"
    shown = [
        "|  | N=128 | causal N=8192 | causal N=16384 |",
        "| ours entmax | 1.57 / 1.25, missed 1 | - / 2.7 | - / - |",
        "| ours r-softmax | - / 1.41, missed 1.3 | - / - | - / - |",
        "|  | causal N=16384 |",
        "| ours entmax | - / 1.2, met 1.3 |",
        "| ours r-softmax | 1.02, met 1.08 | 1.09, met 1.1 |",
        "| causal N=8192 beside AdaSplash v2 | ours entmax | - / 1.2, missed 0.9 |",
        "- N=128, ours relu: wrong: differs by 3",
        "| softmax medium keys | 64x64 w4 s2 | 0.75 |",
        "- sanity: 1 ok, 1 failed; 0 s",
        "  - two: AssertionError",
        "- step: not run; 0 s",
        "Left: sanity, step; run the same command again.",
    ]
    assert [line for line in lines if line in shown] == shown

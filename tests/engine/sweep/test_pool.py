"""Pools of one machine and of a cluster: a process for each job, and failures that end nothing."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.pool import Failure, Pool, environments
from sparse_attn.engine.sweep.run import make_pool
from sparse_attn.system import imports
from tests.commands import run
from tests.engine.sweep import jobs
from tests.marks import slow, soak

HERE, RAY = Resources(gpus_per_run=0), Resources("local", gpus_per_run=0)
# starting Ray takes five seconds
places = pytest.mark.parametrize("place", [HERE, *soak(RAY)], ids=["here", "ray"])


@pytest.fixture(autouse=True)
def ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test with Ray needs, and that it left no cluster behind."""
    place = request.node.callspec.params.get("place") if hasattr(request.node, "callspec") else None
    if place is not RAY:
        yield
        return
    module = pytest.importorskip("ray", reason="needs Ray: pip install -e '.[ray]'")
    yield
    assert not module.is_initialized()


# workers of Ray cannot import a test: a lambda travels by value
def outcomes_of(pool: Pool[int], count: int) -> dict[int, Any]:
    todo, running = set(range(count)), []
    outcomes: dict[int, Any] = {}
    for job, outcome in pool.results(lambda: sorted(todo), running.append):
        assert job in running[-1]
        todo.remove(job)
        outcomes[job] = outcome
    assert 0 < min(map(len, running)) <= max(map(len, running)) <= len(os.sched_getaffinity(0))
    return outcomes


@pytest.mark.parametrize(
    ("place", "fresh"),
    [(HERE, True), *slow((HERE, False)), *soak((RAY, True), (RAY, False))],
    ids=["here-fresh", "here", "ray-fresh", "ray"],
)
def test_what_fails_or_dies_ends_nothing(
    place: Resources, fresh: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    by_value = eval("lambda job: work(job)", {"work": jobs.work}) if place is RAY else jobs.work
    with make_pool(by_value, place, fresh) as pool:
        outcomes = outcomes_of(pool, 6)
    bad, dead = outcomes.pop(1), outcomes.pop(2)
    assert isinstance(bad, Failure)
    assert "ValueError: job 1 is bad" in bad.error
    assert isinstance(dead, Failure)
    if place is RAY:
        assert "WorkerCrashedError" in dead.error
    else:
        assert dead.error.startswith("what it said last\n")
        assert "died with exit code -9: killed, for example out of memory" in dead.error
    assert [found["job"] for found in outcomes.values()] == list(outcomes)
    processes = {found["process"] for found in outcomes.values()}
    assert len(processes) == 4 if fresh else len(processes) < 4
    # no GPU was asked for
    assert {found["CUDA_VISIBLE_DEVICES"] for found in outcomes.values()} == {""}
    assert {found["OMP_NUM_THREADS"] for found in outcomes.values()} == {"1"}
    assert "goes nowhere" not in capfd.readouterr().out


PARENT = """
import os, sys, time
from pathlib import Path
from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.run import make_pool

def work(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    with make_pool(work, Resources(gpus_per_run=0)) as pool:
        folder = sys.argv[1]
        def show(running):
            while not os.listdir(folder):
                time.sleep(0.02)
            os._exit(7)
        list(pool.results(lambda: [folder], show))
"""


@pytest.mark.slow
def test_no_process_outlives_its_sweep(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "seen").mkdir()
    assert run(tmp_path / "parent.py", tmp_path / "seen", timeout=120).returncode == 7
    (process,) = map(int, os.listdir(tmp_path / "seen"))
    for _ in range(1000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        signal.sigtimedwait([], 0.02)
    pytest.fail("it is still there")


STOPPED = """
import os, signal, sys, time
from pathlib import Path
from tqdm import tqdm
from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.run import make_pool

def work(seen):
    for _ in tqdm([0]):
        seen.touch()
        time.sleep(600)

if __name__ == "__main__":
    os.setsid()
    seen, at_once = Path(sys.argv[1]), len(sys.argv) > 2
    def show(running):
        while not (at_once or seen.exists()):
            time.sleep(0.02)
        os.killpg(0, signal.SIGINT)
    try:
        with make_pool(work, Resources(gpus_per_run=0)) as pool:
            list(pool.results(lambda: [seen], show))
    except KeyboardInterrupt:
        print("stopped")
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", [[], ["at once"]], ids=["at work", "at its start"])
def test_ctrl_c_is_quiet(tmp_path: Path, when: list[str]) -> None:
    (tmp_path / "stopped.py").write_text(STOPPED)
    done = run(tmp_path / "stopped.py", tmp_path / "seen", *when, timeout=120)
    assert (done.stdout, done.stderr) == ("stopped\n", "")


SCRIPT = """
import sys
from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.run import make_pool

def work(job):
    return __name__

def start():
    todo = [0]
    with make_pool(work, Resources(gpus_per_run=0)) as pool:
        for job, outcome in pool.results(lambda: todo, lambda running: None):
            print(outcome)
            todo.clear()

"""


@pytest.mark.slow
def test_a_script_that_each_run_would_start_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "if len(sys.argv) == 1:\n    start()\n")
    done = run(script, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"ValueError: {script}, line 17: every run is a process that imports this script, and "
        'would start the runs again; move this line below `if __name__ == "__main__":`'
    )
    script.write_text(
        SCRIPT + 'try:\n    if __name__ == "__main__":\n        start()\nfinally: pass'
    )
    done = run(script, timeout=120)
    assert (done.stdout, done.stderr) == ("__mp_main__\n", "")


@places
def test_modules_of_the_command_are_imported_by_its_runs(
    place: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_user.py").touch()
    monkeypatch.setattr(imports, "_names", [str(tmp_path / "of_a_user.py")])
    by_value = eval("lambda job: modules(job)", {"modules": jobs.modules})
    with make_pool(jobs.modules if place is HERE else by_value, place) as pool:
        assert "of_a_user" in outcomes_of(pool, 1)[0]
    monkeypatch.setattr(imports, "_names", ["no_such_module"])
    with make_pool(jobs.modules if place is HERE else by_value, place) as pool:
        assert "--import no_such_module: there is no" in outcomes_of(pool, 1)[0].error


@places
def test_more_processors_than_there_are(place: Resources) -> None:
    asked = Resources(place.address, cpus_per_run=10_000)
    with pytest.raises(ValueError, match="cpus_per_run=10000: "), make_pool(print, asked):
        pass


@places
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_where_there_is_none(place: Resources) -> None:
    asked = Resources(place.address, gpus_per_run=1)
    with pytest.raises(ValueError, match="gpus_per_run=1: "), make_pool(print, asked):
        pass


@pytest.mark.slow
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
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked = Resources(gpus_per_run=share)
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in environments(asked)] == devices
    if len(devices) == 2:
        with make_pool(jobs.device, asked) as pool:
            outcomes = outcomes_of(pool, 2)
        assert sorted(outcomes.values()) == devices


def test_what_cannot_be_sent_is_a_failure() -> None:
    with make_pool(jobs.unsendable, HERE) as pool:
        outcomes = outcomes_of(pool, 2)
    assert isinstance(outcomes[0], Failure)
    assert "pickle" in outcomes[0].error
    assert isinstance(outcomes[1], Failure)
    assert "a run that leaves" in outcomes[1].error


def test_what_runs_leave_goes_with_the_sweep() -> None:
    with make_pool(jobs.folder, HERE) as pool:
        left = Path(outcomes_of(pool, 1)[0])
        assert left.is_dir()
    assert not left.exists()

"""Stages that call other programs: pytest on the tests marked gpu, and compute-sanitizer."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu import outcomes
from benchmarks.gpu.stage import CLOSING, PROCESSES, Result, Setup
from sparse_attn.system.files import write_text

ROOT = Path(__file__).parents[2]
CUDA = "/usr/local/cuda/bin"
CHECKS = ("memcheck", "racecheck")
LAST = 20  # lines of output kept
NO_TESTS = 5  # exit code of pytest without tests: all have an outcome


def sanitizer_cases(setup: Setup) -> tuple[str, ...]:
    return CHECKS


def sanitize(setup: Setup, check: str, seconds: float) -> Result:
    """Run four small calls under a tool of compute-sanitizer."""
    program = shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:{CUDA}")
    if program is None:
        return {"skipped": "compute-sanitizer, of the CUDA toolkit, is not on the PATH"}
    ours = [sys.executable, "-m", "benchmarks.gpu.sanity", setup.device.type]
    # allocate each tensor separately, so that reads past its end are detected
    own = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    status, said = _output([program, "--tool", check, "--error-exitcode", "9", *ours], seconds, own)
    last = {"output": said.splitlines()[-LAST:]}
    return last if status == 0 else {"failed": _ended(status, seconds), **last}


def test_cases(setup: Setup) -> tuple[str, ...]:
    """Return a single case, so that pytest starts only once."""
    return ("tests marked gpu",)


def test_files(setup: Setup) -> list[str]:
    """Return the paths of the test files that cover every backend, as arguments of pytest."""
    files = sorted((ROOT / "tests/kernels").glob("test_*.py"))
    names = [str(f.relative_to(ROOT)) for f in files if "from .backends" in f.read_text("utf-8")]
    return [name for name in names if "direct" in name] if setup.rehearse else names


def run_tests(setup: Setup, case: str, seconds: float) -> Result:
    """Run the tests marked gpu that have no outcome so far, in several processes."""
    number = 1 if setup.rehearse else min(PROCESSES, os.cpu_count() or 1)
    marked = "not gpu" if setup.rehearse else "gpu"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-p", "xdist", "-p", "pytest_timeout", "-p", "benchmarks.gpu.outcomes"]
    command += ["-n", str(number), "-m", marked, *test_files(setup)]
    before = _outcomes(setup)
    known, file = setup.out / "tests-before.txt", setup.tests
    write_text(known, "".join(f"{test}\n" for test in before))
    # other plugins may warn, which is an error in our tests
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    own |= {outcomes.KNOWN: str(known.resolve()), outcomes.FILE: str(file.resolve())}
    status, said = _output(command, seconds, own)
    known.unlink()
    found = _outcomes(setup)
    passed = sum(outcome == "passed" for outcome, _ in found.values())
    wrong = [f"{test}: {why}" for test, (outcome, why) in found.items() if outcome == "failed"]
    result: Result = {"passed": passed, "shown": f"{passed:,} passed"}
    if wrong:
        result |= {"failed": f"{len(wrong)} of {passed + len(wrong)} tests", "tests": wrong}
    if status is None:
        return {**result, "again": True, "shown": f"{passed:,} passed, not finished"}
    if status in (0, NO_TESTS) or (wrong and status == 1):
        return result
    return {**result, "failed": f"exit code {status}", "output": said.splitlines()[-LAST:]}


def _outcomes(setup: Setup) -> dict[str, tuple[str, str]]:
    """Return outcome and reason of each test that ran in this call or an earlier one."""
    file = setup.tests
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("]")]  # skips truncated lines
    return {test: (outcome, why) for test, outcome, why in found}


def _ended(status: int | None, seconds: float) -> str:
    return f"not finished in {seconds:.0f} s" if status is None else f"exit code {status}"


def _output(command: list[str], seconds: float, own: dict[str, str]) -> tuple[int | None, str]:
    """Run a program; return exit code and output, with None as code after a timeout."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            status = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=max(1.0, seconds - CLOSING),
                preexec_fn=_end_with_parent,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
        output.seek(0)
        return status, output.read()


def _end_with_parent() -> None:
    """Ask Linux to kill this process when its parent process ends for any reason."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

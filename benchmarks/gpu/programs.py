"""Stages that other programs run: pytest on the tests marked gpu, and compute-sanitizer."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.stage import CLOSING, PROCESSES, Result, Setup

ROOT = Path(__file__).parents[2]
CUDA = "/usr/local/cuda/bin"
CHECKS = ("memcheck", "racecheck")
LAST = 20  # lines of output kept


def sanitizer_cases(setup: Setup) -> tuple[str, ...]:
    return CHECKS


def sanitize(setup: Setup, check: str, seconds: float) -> Result:
    """Four small calls under a tool of compute-sanitizer."""
    program = shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:{CUDA}")
    if program is None:
        return {"skipped": "compute-sanitizer, of the CUDA toolkit, is not on the PATH"}
    ours = [sys.executable, "-m", "benchmarks.gpu.sanity", setup.device.type]
    # each tensor is an allocation of its own, so that reading past its end is seen
    own = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    status, said = _output([program, "--tool", check, "--error-exitcode", "9", *ours], seconds, own)
    last = {"output": said.splitlines()[-LAST:]}
    return last if status == 0 else {"failed": _ended(status, seconds), **last}


def test_cases(setup: Setup) -> list[str]:
    """Files of tests on every backend, as pytest is given them."""
    files = sorted((ROOT / "tests/kernels").glob("test_*.py"))
    names = [str(f.relative_to(ROOT)) for f in files if "from .backends" in f.read_text("utf-8")]
    return [name for name in names if "direct" in name] if setup.rehearse else names


def run_tests(setup: Setup, file: str, seconds: float) -> Result:
    """The tests of a file that are marked gpu, in several processes."""
    number = 1 if setup.rehearse else min(PROCESSES, os.cpu_count() or 1)
    marked = "not gpu" if setup.rehearse else "gpu"
    command = [sys.executable, "-m", "pytest", "-v", "-rfE", "--tb=line", "-p", "no:cacheprovider"]
    command += ["-p", "xdist", "-p", "pytest_timeout", "-n", str(number), "-m", marked, file]
    # other plugins may warn, which is an error in our tests; pytest cuts its lines at COLUMNS
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300", "OMP_NUM_THREADS": "1"}
    status, said = _output(command, seconds, own)
    outcomes = re.findall(r"^\[gw\d+\] .*?(PASSED|FAILED|ERROR|SKIPPED) (\S+)", said, re.MULTILINE)
    passed = sum(outcome == "PASSED" for outcome, _ in outcomes)
    if status == 0:
        return {"passed": passed}
    # a summary has the names, but not why a file was not imported; without time there is none
    wrong = re.findall(r"^(?:FAILED|ERROR|E   \w*(?:Import|Module)\w*:) .*", said, re.MULTILINE)
    wrong = wrong or [f"{o} {name}" for o, name in outcomes if o in ("FAILED", "ERROR")]
    found = {"passed": passed, "failed": _ended(status, seconds)}
    return {**found, "tests": wrong} if wrong else {**found, "output": said.splitlines()[-LAST:]}


def _ended(status: int | None, seconds: float) -> str:
    return f"not finished in {seconds:.0f} s" if status is None else f"exit code {status}"


def _output(command: list[str], seconds: float, own: dict[str, str]) -> tuple[int | None, str]:
    """Exit code and output of a program; no exit code if it did not end in time."""
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
    """Ask Linux to kill this process when the one that started it ends, in whatever way."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

"""Pytest plugin that skips tests with a known outcome and records the outcomes of the others.

With pytest-xdist the workers skip tests and the main process records. A worker that loses its GPU
exits, because every later test in it would fail; pytest-xdist then starts another.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

KNOWN, FILE = "GPU_TESTS_KNOWN", "GPU_TESTS_FILE"  # environment variables
LOST = "CUDA error: "
MOST = 300  # characters of a reason


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that `KNOWN` lists."""
    known = set(Path(os.environ[KNOWN]).read_text(encoding="utf-8").splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
    items[:] = [item for item in items if item.nodeid not in known]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append a line for each test: its name, outcome and reason."""
    wrong = report.outcome == "failed"
    if "PYTEST_XDIST_WORKER" in os.environ:
        if wrong and LOST in report.longreprtext:
            os._exit(1)
        return
    if report.when == "call" or report.outcome != "passed":
        line = json.dumps([report.nodeid, report.outcome, _reason(report) if wrong else ""])
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _reason(report: pytest.TestReport) -> str:
    """Return the first line of the error, or else the last line of the report."""
    lines = report.longreprtext.strip().splitlines() or [""]
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return (errors or lines[-1:])[0][:MOST]

"""Sweeps without the seconds that their processes take to start."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from pipeline.sweep.plan import PlannedRun


class Here(nullcontext["Here"]):
    """Stands in for a pool of processes."""

    def __init__(self, work: Callable[[PlannedRun], Any], *_: object) -> None:
        super().__init__(self)
        self.work = work

    def results(
        self, due: Callable[[], Iterable[PlannedRun]], show: object
    ) -> Iterator[tuple[PlannedRun, Any]]:
        while run := next(iter(due()), None):
            yield run, self.work(run)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps of the test do their runs one after the other, where they are."""
    monkeypatch.setattr("pipeline.sweep.run.make_pool", Here)

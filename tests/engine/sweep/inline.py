"""A pool without processes, and a disk that is full."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparse_attn.engine.sweep.plan import PlannedRun
from sparse_attn.engine.sweep.pool import Failure


class Inline:
    """A pool of this process, which notes in what order it works; a RuntimeError is a failure."""

    order: list[str]
    beside: tuple[PlannedRun, ...] = ()

    def __init__(self, work: Any, resources: Any, fresh: bool) -> None:
        self.work = work

    def __enter__(self) -> Inline:
        Inline.order = []
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def results(self, due: Any, show: Any) -> Any:
        while run := next(iter(due()), None):
            show([run, *self.beside])
            self.order.append(f"{run.mapping} {run.stage} {run.index}")
            try:
                outcome = self.work(run)
            except RuntimeError as error:
                outcome = Failure(str(error))
            yield run, outcome


@contextmanager
def full_disk(size: int = 100) -> Iterator[None]:
    """Every file ends after `size` bytes, as if the disk did."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

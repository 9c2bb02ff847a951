"""The pool: a fresh process for each job, and failures that end nothing."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch

from pipeline.sweep.config import Resources
from pipeline.sweep.pool import Failure, Pool


@pytest.fixture
def pool() -> Iterator[Pool[int]]:
    # inside a function, so that it travels by value: workers cannot import a test
    def work(job: int) -> tuple[int, int, str | None]:
        if job == 1:
            raise ValueError("job 1 is bad")
        if job == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return job, os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")

    with Pool(work, Resources(gpus_per_run=0)) as pool:
        yield pool
    assert not ray.is_initialized()


def test_jobs_run_apart_and_what_fails_ends_nothing(pool: Pool[int]) -> None:
    todo = set(range(5))

    def due() -> list[int]:
        return sorted(todo)

    outcomes: dict[int, Any] = {}
    running: list[list[int]] = []
    for job, outcome in pool.results(due, running.append):
        assert job in running[-1]
        todo.remove(job)
        outcomes[job] = outcome
    assert max(map(len, running)) <= (os.cpu_count() or 1)
    assert min(map(len, running)) > 0
    assert isinstance(outcomes[1], Failure)
    assert "ValueError: job 1 is bad" in outcomes[1].error
    assert isinstance(outcomes[2], Failure)
    assert "WorkerCrashedError" in outcomes[2].error
    good = [outcomes[job] for job in (0, 3, 4)]
    assert [job for job, *_ in good] == [0, 3, 4]
    assert len({process for _, process, _ in good}) == 3
    assert {devices for *_, devices in good} == {""}  # no GPU was asked for


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Resources(cpus_per_run=10_000), "cpus_per_run=10000: no machine has more than"),
        pytest.param(
            Resources(gpus_per_run=1),
            "gpus_per_run=1: no machine has more than 0",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_more_than_there_is(asked: Resources, says: str) -> None:
    with pytest.raises(ValueError, match=says), Pool(print, asked):
        pass
    assert not ray.is_initialized()

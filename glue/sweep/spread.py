"""Spreads work over the processors and GPUs of one machine or of a cluster, by Ray."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import ray
from ray.exceptions import RayError

import glue
import sparse_attn
from glue.sweep.config import Resources

JobT = TypeVar("JobT")


@dataclass(frozen=True)
class Failure:
    """Work that ended in an exception, or whose process died."""

    error: str


class Pool(Generic[JobT]):
    """`with Pool(work, resources) as pool:` runs `work(job)` in a fresh process for each job.

    A fresh process, so that no run sees what another left in memory, and its peak is its own.

    Raises:
        ValueError: no machine has what one run asks for.
        ConnectionError: there is no cluster at the address.
    """

    def __init__(self, work: Callable[[JobT], Any], resources: Resources) -> None:
        self._work = work
        self._resources = resources
        self._pending: dict[Any, JobT] = {}
        self.slots = 0

    def __enter__(self) -> Self:
        asked = self._resources
        _connect(asked.address)
        try:
            have = ray.cluster_resources()
            gpus = float("GPU" in have) if asked.gpus_per_run is None else asked.gpus_per_run
            needs = {"CPU": float(asked.cpus_per_run), "GPU": gpus}
            for kind, need in needs.items():
                if need > have.get(kind, 0):
                    raise ValueError(
                        f"{kind.lower()}s_per_run={need:g}: there are {have.get(kind, 0):g}"
                    )
            self.slots = int(min(have[kind] // need for kind, need in needs.items() if need))
            self._remote: Any = ray.remote(
                num_cpus=asked.cpus_per_run, num_gpus=gpus, max_calls=1, max_retries=0
            )(_call)
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop what is running and let go of the machines."""
        ray.shutdown()

    def results(self, due: Callable[[], Iterable[JobT]]) -> Iterator[tuple[JobT, Any]]:
        """(job, result or `Failure`) as they come, until nothing is `due` and nothing is running.

        `due` is asked again after each one: it names jobs in the order they should start in, those
        now running among them.
        """
        while True:
            free = self.slots - len(self._pending)
            waiting = (job for job in due() if job not in self._pending.values())
            for job, _ in zip(waiting, range(free), strict=False):
                self._pending[self._remote.remote(self._work, job, os.getcwd())] = job
            if not self._pending:
                return
            [ready], _ = ray.wait(list(self._pending), num_returns=1)
            try:
                result = ray.get(ready)
            except RayError as error:
                result = Failure(f"{type(error).__name__}: {error}")
            yield self._pending.pop(ready), result


def _connect(address: str | None) -> None:
    """Start Ray here, or join a cluster and hand it this project's code."""
    packages = [str(Path(module.__file__ or "").parent) for module in (glue, sparse_attn)]
    ray.init(
        address=address or "local",
        include_dashboard=False if address is None else None,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"py_modules": packages} if address else None,
    )


def _call(work: Callable[[JobT], Any], job: JobT, folder: str) -> Any:
    # relative paths mean what they mean where the sweep was started, if that is there at all
    if Path(folder).is_dir():
        os.chdir(folder)
    if not ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        return work(job)
    except Exception:
        return Failure(traceback.format_exc())

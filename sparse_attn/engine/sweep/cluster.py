"""Run commands as tasks of a Ray cluster, whose machines share the folders of this one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any, Self

import ray

from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.pool import Job


class RayPool:
    """Pool of a cluster; `local` as the address starts one on this machine.

    Raises:
        ConnectionError: there is no cluster at the address.
    """

    def __init__(self, resources: Resources) -> None:
        ray.init(resources.address, log_to_driver=False, logging_level=logging.ERROR)
        have = ray.cluster_resources()
        gpus = float("GPU" in have) if resources.gpus_per_run is None else resources.gpus_per_run
        needs = {"CPU": resources.cpus_per_run, **({"GPU": gpus} if gpus else {})}
        # a tenth of a GPU fits ten times, though 1 // 0.1 is 9
        self._slots = int(min(have.get(kind, 0) / need for kind, need in needs.items()) + 1e-6)
        self._task: Any = ray.remote(num_cpus=resources.cpus_per_run, num_gpus=gpus, max_retries=0)(
            _run
        )
        self._running: dict[Any, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()

    @property
    def has_room(self) -> bool:
        return len(self._running) < max(self._slots, 1)

    def start(self, key: str, job: Job) -> None:
        path = os.environ.get("PYTHONPATH", "")
        self._running[self._task.remote(job, os.getcwd(), path)] = key

    def ended(self) -> list[str]:
        ended, _ = ray.wait(list(self._running))
        return [self._running.pop(task) for task in ended]


def _run(job: Job, folder: str, path: str) -> None:
    devices = {} if ray.get_gpu_ids() else {"CUDA_VISIBLE_DEVICES": ""}
    with open(os.path.join(folder, job.log), "w") as log:
        subprocess.run(
            [sys.executable, *job.words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, **devices},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

"""Run commands as tasks of a Ray cluster, whose machines share the folders of this one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any, Self

import ray
import ray.exceptions
from tqdm import tqdm

from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.pool import Job


class RayPool:
    """Pool of a cluster; `local` as the address starts one on this machine.

    Raises:
        ConnectionError: there is no cluster at the address.
        ValueError: no machine has the resources of one run.
    """

    def __init__(self, resources: Resources) -> None:
        ray.init(resources.address, log_to_driver=False, logging_level=logging.ERROR)
        gpus = resources.gpus_per_run
        if gpus is None:
            gpus = float("GPU" in ray.cluster_resources())
        self._needs = {"CPU": resources.cpus_per_run, **({"GPU": gpus} if gpus else {})}
        if not self._slots():
            ray.shutdown()
            needed = " and ".join(f"{need:g} {kind}" for kind, need in self._needs.items())
            raise ValueError(f"address={resources.address}: no machine has {needed} for a run")
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
        return len(self._running) < self._slots()

    def _slots(self) -> int:
        """Count the runs that fit on the machines at once; machines may come and go."""
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        # a tenth of a GPU fits ten times, though 1 // 0.1 is 9
        return sum(
            int(min(have.get(kind, 0) / need for kind, need in self._needs.items()) + 1e-6)
            for have in machines
        )

    def start(self, key: str, job: Job) -> None:
        path = os.environ.get("PYTHONPATH", "")
        self._running[self._task.remote(job, os.getcwd(), path)] = key

    def ended(self) -> list[str]:
        ended, _ = ray.wait(list(self._running))
        for task in ended:
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                tqdm.write(f"{type(error).__name__}: {error}")
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

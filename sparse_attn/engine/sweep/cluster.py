"""Run jobs on the processors and GPUs of a Ray cluster."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import ray
from ray.exceptions import RayError

from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.pool import Failure
from sparse_attn.system.imports import import_module, imported

JobT = TypeVar("JobT")
POLL = 30  # seconds
# parts of this project to upload, if they exist
PACKAGES = ("sparse_attn", "glue", "experiments")


class RayPool(Generic[JobT]):
    """Pool of a cluster; takes the arguments of `make_pool`.

    Raises:
        ValueError: no machine has the resources of one run.
        ConnectionError: no cluster at the address.
    """

    def __init__(self, work: Callable[[JobT], Any], resources: Resources, fresh: bool) -> None:
        self._work = work
        self._calls = 1 if fresh else 0  # 0: unlimited
        self._resources = resources
        self._pending: dict[Any, JobT] = {}
        self._needs: dict[str, float] = {}

    def __enter__(self) -> Self:
        asked = self._resources
        assert asked.address is not None
        _connect(asked.address)
        try:
            have = ray.cluster_resources()
            gpus = float("GPU" in have) if asked.gpus_per_run is None else asked.gpus_per_run
            self._needs = {"CPU": float(asked.cpus_per_run), "GPU": gpus}
            for kind, need in self._needs.items():
                most = max(machine.get(kind, 0.0) for machine in _machines())
                if need > most:
                    raise ValueError(
                        f"{kind.lower()}s_per_run={need:g}: no machine has more than {most:g}"
                    )
            self._remote: Any = ray.remote(
                num_cpus=asked.cpus_per_run, num_gpus=gpus, max_calls=self._calls, max_retries=0
            )(_call)
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all running jobs and release the machines."""
        ray.shutdown()

    def _slots(self) -> int:
        """Number of jobs that the current machines can run at once."""
        needs = {kind: need for kind, need in self._needs.items() if need}
        # a tenth of a GPU fits ten times, though 1 // 0.1 is 9
        return sum(
            int(min(machine.get(kind, 0.0) / need for kind, need in needs.items()) + 1e-6)
            for machine in _machines()
        )

    def results(
        self, due: Callable[[], Iterable[JobT]], show: Callable[[list[JobT]], object]
    ) -> Iterator[tuple[JobT, Any]]:
        """Yield results like `Pool.results`; machines may come and go."""
        while True:
            waiting = [job for job in due() if job not in self._pending.values()]
            for job in waiting[: max(self._slots() - len(self._pending), 0)]:
                call = self._remote.remote(self._work, job, os.getcwd(), imported())
                self._pending[call] = job
            if not self._pending:
                if not waiting:
                    return
                print("no machine of the cluster can take a run now; waiting", file=sys.stderr)
                time.sleep(POLL)
                continue
            show(list(self._pending.values()))
            # the timeout lets new machines get jobs
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=POLL)
            if ready:
                try:
                    result = ray.get(ready[0])
                except RayError as error:
                    result = Failure(f"{type(error).__name__}: {error}")
                yield self._pending.pop(ready[0]), result


def _machines() -> list[dict[str, float]]:
    """Resources of each current machine."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _connect(address: str) -> None:
    """Connect to a cluster and upload this project's code; `local` starts one here."""
    root = Path(__file__).parents[3]
    packages = [str(root / name) for name in PACKAGES if (root / name).is_dir()]
    local = address == "local"
    ray.init(
        address=address,
        include_dashboard=False if local else None,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env=None if local else {"py_modules": packages},
    )


def _call(work: Callable[[JobT], Any], job: JobT, folder: str, modules: Sequence[str]) -> Any:
    # relative paths start at the folder of the sweep's process, if this machine has it
    if Path(folder).is_dir():
        os.chdir(folder)
    if not ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        for module in modules:
            import_module(module)
        return work(job)
    except Exception:
        return Failure(traceback.format_exc())

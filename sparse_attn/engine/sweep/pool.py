"""Run commands on the processors and GPUs of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from sparse_attn.engine.sweep.config import Resources

POLL = 0.2  # seconds
PARENT = "SPARSE_ATTN_SWEEP"  # environment variable with the process of the sweep


class Job(NamedTuple):
    """A command: the arguments of Python, and the file for its output."""

    words: list[str]
    log: Path


class Pool(AbstractContextManager[Any], Protocol):
    """Runs several commands at once; leaving the context stops them."""

    @property
    def has_room(self) -> bool:
        """Whether another command can start."""

    def start(self, key: str, job: Job) -> None:
        """Start a command; call only if `has_room`."""

    def ended(self) -> list[str]:
        """Wait until a command has ended, and return the keys of those that have."""


class LocalPool:
    """Pool of this machine.

    Raises:
        ValueError: the machine lacks the resources of one run.
    """

    def __init__(self, resources: Resources) -> None:
        self._free = environments(resources)  # one for each command at a time
        self._running: dict[str, tuple[subprocess.Popen[bytes], dict[str, str]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _environment in self._running.values():
            process.kill()
        for process, _environment in self._running.values():
            process.wait()

    @property
    def has_room(self) -> bool:
        return bool(self._free)

    def start(self, key: str, job: Job) -> None:
        environment = self._free.pop(0)
        with job.log.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *job.words],
                env={**os.environ, **environment, PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running[key] = process, environment

    def ended(self) -> list[str]:
        while True:
            ended = [
                key for key, (process, _) in self._running.items() if process.poll() is not None
            ]
            if ended:
                break
            time.sleep(POLL)
        self._free += [self._running.pop(key)[1] for key in ended]
        return ended


def end_with_sweep() -> None:
    """End this process if the sweep that started it is killed; call once, at the start."""
    if PARENT not in os.environ:
        return
    sweep = int(os.environ[PARENT])

    def watch() -> None:
        while os.getppid() == sweep:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def environments(resources: Resources) -> list[dict[str, str]]:
    """Return the environment variables for processors and GPU of each concurrent command."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if resources.cpus_per_run > cpus:
        raise ValueError(
            f"cpus_per_run={resources.cpus_per_run}: this machine has {cpus}; use --address for a "
            "cluster"
        )
    threads = {"OMP_NUM_THREADS": str(resources.cpus_per_run)}
    count = cpus // resources.cpus_per_run
    gpus = _gpus()
    share = float(bool(gpus)) if resources.gpus_per_run is None else resources.gpus_per_run
    if not share:
        return [{**threads, "CUDA_VISIBLE_DEVICES": ""}] * count
    if not gpus:
        raise ValueError(
            f"gpus_per_run={share:g}: torch finds no CUDA device; omit it, or use --address for a "
            "cluster"
        )
    # a tenth of a GPU fits ten times, though 1 // 0.1 is 9
    slots = [gpu for _ in range(int(1 / share + 1e-6)) for gpu in gpus]
    return [{**threads, "CUDA_VISIBLE_DEVICES": gpu} for gpu in slots[:count]]


def _gpus() -> list[str]:
    """Return the GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
    return visible.split(",")[:count]

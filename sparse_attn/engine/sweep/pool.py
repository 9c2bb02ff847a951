"""Run jobs in processes on the processors and GPUs of this machine."""

from __future__ import annotations

import ast
import linecache
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, Protocol, Self, TypeVar

from tqdm import tqdm

from sparse_attn.engine.sweep.config import Resources
from sparse_attn.system.imports import import_module, imported

JobT = TypeVar("JobT")
LAST_LINES = 20  # kept of the output of a dead process
_CONTEXT = get_context("spawn")  # clean memory for every process, and CUDA works


@dataclass(frozen=True)
class Failure:
    """A job that raised, or whose process died."""

    error: str


class Pool(AbstractContextManager[Any], Protocol[JobT]):
    """Runs the jobs of a sweep."""

    def results(
        self, due: Callable[[], Iterable[JobT]], show: Callable[[list[JobT]], object]
    ) -> Iterator[tuple[JobT, Any]]:
        """Yield (job, result or `Failure`) until no job is due or running.

        Args:
            due: returns the jobs in starting order, including running ones; called after each
                result.
            show: called with the running jobs before each wait.
        """


class LocalPool(Generic[JobT]):
    """Pool of one machine; takes the arguments of `make_pool`.

    Raises:
        ValueError: the machine lacks the resources of one run; or a script starts the pool outside
            of `if __name__ == "__main__":`.
    """

    def __init__(self, work: Callable[[JobT], Any], resources: Resources, fresh: bool) -> None:
        _check_script()
        self._work = work
        self._fresh = fresh
        self._workers: list[_Worker] = []
        slots = environments(resources)  # one per concurrent job
        # killed runs cannot clean up after themselves
        self._folder = TemporaryDirectory(ignore_cleanup_errors=True)
        self._idle = [{**slot, "TMPDIR": self._folder.name} for slot in slots]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all running jobs."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.stop()
        self._folder.cleanup()

    def results(
        self, due: Callable[[], Iterable[JobT]], show: Callable[[list[JobT]], object]
    ) -> Iterator[tuple[JobT, Any]]:
        """Yield results like `Pool.results`."""
        running: dict[_Worker, JobT] = {}
        while True:
            for job in [job for job in due() if job not in running.values()]:
                worker = self._free(running)
                if worker is None:
                    break
                worker.give(self._work, job)
                running[worker] = job
            if not running:
                return
            show(list(running.values()))
            ready = connection.wait([worker.connection for worker in running])
            for worker in [worker for worker in running if worker.connection in ready]:
                outcome = worker.outcome()
                job = running.pop(worker)
                if self._fresh:
                    self._retire(worker)
                yield job, outcome

    def _free(self, running: dict[_Worker, JobT]) -> _Worker | None:
        """Return an idle process, a new one if there is room, or None."""
        for worker in [worker for worker in self._workers if worker not in running]:
            if worker.process.is_alive():
                return worker
            self._retire(worker)
        if not self._idle:
            return None
        worker = _Worker(self._idle.pop(0))
        self._workers.append(worker)
        return worker

    def _retire(self, worker: _Worker) -> None:
        worker.stop()
        self._workers.remove(worker)
        self._idle.append(worker.environment)


class _Worker:
    """A process and its job pipe."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.connection, far = _CONTEXT.Pipe()
        handle, self.errors = tempfile.mkstemp(dir=environment["TMPDIR"])
        os.close(handle)
        # daemons cannot start processes such as DataLoader workers
        self.process = _CONTEXT.Process(
            target=_serve, args=(far, environment, self.errors, imported())
        )
        # only the sweep handles Ctrl+C: the process inherits the mask from the start. The
        # resource tracker would unblock it when started
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        far.close()

    def give(self, work: Callable[[JobT], Any], job: JobT) -> None:
        """Send a job; if the process has died, `outcome` reports it."""
        with suppress(ConnectionError):
            self.connection.send((work, job))

    def outcome(self) -> Any:
        """Return the result, or a `Failure` if the process died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):  # OSError: died while sending
            self.process.join()
            said = Path(self.errors).read_text(errors="replace").splitlines()[-LAST_LINES:]
            ended = f"the process of the run died with exit code {self.process.exitcode}"
            if self.process.exitcode == -signal.SIGKILL:
                ended += ": killed, for example out of memory"
            return Failure("\n".join([*said, ended]))

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


def _serve(
    far: connection.Connection, environment: dict[str, str], errors: str, modules: Sequence[str]
) -> None:
    """Run jobs until the pipe closes; discard output, and keep the last of it in `errors`."""
    # before the first job imports torch, which reads them once
    os.environ |= environment
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # tqdm's default lock is a semaphore, which Python reports as leaked when a process is killed
    tqdm.set_lock(threading.RLock())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for stream, file in ((1, os.devnull), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY), stream)
    while True:
        try:
            work, job = far.recv()
        except EOFError:
            return
        try:
            for module in modules:
                import_module(module)
            # pickled here, so that unpicklable results become errors
            outcome = ForkingPickler.dumps(work(job))
        except (Exception, SystemExit):
            outcome = ForkingPickler.dumps(Failure(traceback.format_exc()))
        far.send_bytes(outcome)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _check_script() -> None:
    """Raise if the script that starts the runs would start them again in the process of each.

    A new process imports the script first, for what a job of the script needs, such as a mapping.
    """
    script = vars(sys.modules["__main__"])
    lines = [
        line
        for frame, line in traceback.walk_stack(None)
        if frame.f_globals is script and frame.f_code.co_name == "<module>"
    ]
    file = script.get("__file__")
    source = "".join(linecache.getlines(file)) if file and lines else ""
    blocks = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    ]
    guarded = any(n.lineno <= line <= (n.end_lineno or 0) for n in blocks for line in lines)
    if source and not guarded:
        raise ValueError(
            f"{file}, line {lines[0]}: every run is a process that imports this script, and would "
            'start the runs again; move this line below `if __name__ == "__main__":`'
        )


def environments(resources: Resources) -> list[dict[str, str]]:
    """Return the environment variables for processors and GPU of each concurrent job."""
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

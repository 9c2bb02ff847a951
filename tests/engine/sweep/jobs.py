"""What the processes of a pool are given to do; they import this and nothing heavy."""

import os
import signal
import sys
import tempfile
from typing import Any


def work(job: int) -> dict[str, Any]:
    if job == 1:
        raise ValueError("job 1 is bad")
    if job == 2:
        os.write(2, b"what it said last\n")
        os.kill(os.getpid(), signal.SIGKILL)
    print("what a run prints goes nowhere")
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    return {"job": job, "process": os.getpid(), **{name: os.environ.get(name) for name in names}}


def device(job: int) -> str:
    # all of them at once, so that each has a slot of its own
    signal.sigtimedwait([], 3.0)
    return os.environ["CUDA_VISIBLE_DEVICES"]


def unsendable(job: int) -> Any:
    if job:
        raise SystemExit("a run that leaves")
    return lambda: None


def modules(job: int) -> list[str]:
    return sorted(sys.modules)


def folder(job: int) -> str:
    return tempfile.mkdtemp()

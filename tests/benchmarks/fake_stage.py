"""A stage whose cases do what their names say; apart from the tests, as its processes import it."""

import os
import signal
import time
from typing import Any

from benchmarks.gpu import runner
from benchmarks.gpu.stage import Result, Setup, Stage
from benchmarks.timing import DeviceLostError


def behave(setup: Setup, case: str, seconds: float) -> Result:
    if case == "hangs":
        time.sleep(60)
    if case == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if case.startswith("process"):
        return {"process": os.getpid()}
    if case == "goes on":
        before = setup.out / "before"
        again = not before.exists()
        before.touch()
        return {"again": again}
    if case == "raises":
        raise ValueError("wrong by 0.5")
    if case == "loses the GPU":
        runner.reason = lose
        raise RuntimeError("illegal memory access")
    return {"given": seconds}


def lose(error: Exception) -> str:
    raise DeviceLostError from error


class Names:
    """The cases, as a function that another process can be sent."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __call__(self, setup: Setup) -> tuple[str, ...]:
        return self.names


def fake(*cases: str, **options: Any) -> Stage:
    times = {"deadline": 100.0, "patience": 2.0, **options}
    return Stage("fake", cases=Names(cases), run=behave, **times)

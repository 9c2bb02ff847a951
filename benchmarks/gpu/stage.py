"""Stages of `make gpu`, and the settings that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import device_name, slug

PROCESSES = 16  # at most, where several share the GPU
CLOSING = 5.0  # seconds for a case to end by itself when its time is up
# `failed` or `skipped` hold the reason; `shown` is printed; `again`: to go on in the next call
Result = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """Output folder, and `rehearse` for tiny sizes on the CPU in Triton's interpreter."""

    out: Path
    rehearse: bool = False

    @property
    def tests(self) -> Path:
        """Return the file with the outcomes of the tests on this GPU, one per line."""
        return self.out / f"tests-{slug(device_name(self.device))}.jsonl"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.rehearse else "cuda")


@dataclass(frozen=True)
class Stage:
    """Cases that run in separate processes.

    Attributes:
        deadline: seconds for all cases over all calls; no case starts after that.
        patience: seconds for one case, after which its process is ended.
        cases: returns the names of the cases.
        run: runs one case within the seconds given.
        parallel: whether several cases run at once.
    """

    name: str
    deadline: float
    patience: float
    cases: Callable[[Setup], Sequence[str]]
    run: Callable[[Setup, str, float], Result]
    parallel: bool = False

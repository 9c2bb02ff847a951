"""A stage of `make gpu`, and what all of them are given."""

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
    """The output folder; `rehearse` for tiny sizes on the CPU, in Triton's interpreter."""

    out: Path
    rehearse: bool = False

    @property
    def tests(self) -> Path:
        """The outcomes of the tests, a line each, of this GPU."""
        return self.out / f"tests-{slug(device_name(self.device))}.jsonl"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.rehearse else "cuda")


@dataclass(frozen=True)
class Stage:
    """Cases that run in processes of their own.

    Attributes:
        deadline: seconds for all cases, over all calls; those not started by then never run.
        patience: seconds for one case, after which its process is ended.
        cases: their names.
        run: runs one, given its seconds.
        parallel: whether several run at once.
    """

    name: str
    deadline: float
    patience: float
    cases: Callable[[Setup], Sequence[str]]
    run: Callable[[Setup, str, float], Result]
    parallel: bool = False

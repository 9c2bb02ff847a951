"""Time contestants on one case; returns a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from benchmarks.timing import (
    LATE,
    Clock,
    Effort,
    Measurement,
    Task,
    measure,
    ratio,
    reason,
    summarise,
    wall_clock,
    weigh,
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Contestant:
    """A row: its name, its mapping, and whether it is our code as users run it.

    Ours is compared with all peers of the same mapping, and every row with the suite's base.
    """

    name: str
    mapping: str
    ours: bool


T = TypeVar("T", bound=Contestant)


@dataclass(frozen=True)
class Race(Generic[T]):
    """The contestants, the base of ratios, the device and the effort."""

    contestants: Sequence[T]
    base: str
    device: torch.device
    effort: Effort

    def rows(
        self,
        make: Callable[[T], Task],
        which: str = "",
        cache: str = "",
        clock: Clock = wall_clock,
        memory: bool = True,
    ) -> list[Row]:
        """Measure time in interleaved rounds, then memory; a row per contestant.

        If `make(contestant)` or its task raises, the error becomes the reason in its row.
        """
        tasks, measured = {}, {}
        for entry in self.contestants:
            try:
                if self.effort.over:
                    raise NotImplementedError(LATE)
                tasks[entry.name] = make(entry)
            except Exception as error:
                measured[entry.name] = Measurement(reason=reason(error))
        measured |= measure(tasks, clock, self.effort, self.base)
        for name, task in tasks.items():
            measured[name].facts = dict(task.facts)
            if memory and measured[name].reason is None and not self.effort.over:
                weigh(task, measured[name], self.device)
        passed = {"pass": which, "cache": cache}
        return [{**self._row(entry, measured), **passed} for entry in self.contestants]

    def _row(self, entry: T, measured: Mapping[str, Measurement]) -> Row:
        own = measured[entry.name]
        row = {"name": entry.name, "mapping": entry.mapping, "ours": entry.ours}
        if own.reason is not None:
            return {**row, "reason": own.reason}
        rivals = [
            other.name
            for other in self.contestants
            if entry.ours and not other.ours and entry.mapping == other.mapping
        ]
        to = {
            other: ratio(own, measured[other])
            for other in dict.fromkeys([self.base, *rivals])
            if other in measured and measured[other].reason is None
        }
        times = summarise(own.samples.values())
        return {**row, "reason": None, "ms": times, "to": to, **own.facts}

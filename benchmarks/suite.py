"""Base class of benchmark suites: cases, contestants, measurement and page."""

from __future__ import annotations

import argparse
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch

from benchmarks import tables
from benchmarks.command import SUITES
from benchmarks.race import Contestant, Race

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One table: a name within one of the suite's groups in `SUITES`."""

    group: str
    name: str

    @property
    def title(self) -> str:
        """Return the sizes of the case in words."""
        return self.name

    @property
    def share(self) -> float:
        """Return the case's share of time, a factor on the suite's `seconds`."""
        return 1

    @property
    def once(self) -> bool:
        """Return whether a recorded result of this case is reused."""
        return False


@dataclass(frozen=True)
class Pace:
    """Seconds that the contestants of a case share, rounds at least, seconds for a whole run."""

    seconds: float
    least: int
    budget: float = math.inf


C = TypeVar("C", bound=Case)
T = TypeVar("T", bound=Contestant)


class Suite(ABC, Generic[C, T]):
    """Cases measured together, in one record and on one page.

    Attributes:
        name: name in `SUITES` and in file names.
        title, meaning: title of the page, and explanation of its numbers.
        base: the contestant in the denominator of ratios.
        columns: table columns besides times.
        paces: the `Pace` for "cpu", "cuda" and "quick".
        keeps: whether cases of an earlier record are kept by default.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    meaning: ClassVar[str]
    base: ClassVar[str]
    columns: ClassVar[tuple[tables.Column, ...]] = (tables.Column("memory_mib", "MiB"),)
    paces: ClassVar[dict[str, Pace]]
    keeps: ClassVar[bool] = False

    @abstractmethod
    def cases(self, device: str, options: argparse.Namespace) -> Sequence[C]:
        """Return the cases for a kind of device, by importance; fewer with `options.quick`."""

    @abstractmethod
    def contestants(self, case: C, device: torch.device) -> Sequence[T]:
        """Return all contestants of a case."""

    @abstractmethod
    def measure(self, case: C, race: Race[T]) -> dict[str, Any]:
        """Measure a case; return its `rows` and other entries of the record."""

    def sections(self, record: Record) -> list[str]:
        """Return the page below the explanation of its numbers."""
        return [line for case in record["cases"] for line in ["", *self.section(case)]][1:]

    def section(self, case: dict[str, Any]) -> list[str]:
        """Return the section of a case."""
        meaning = SUITES[self.name].groups[case["group"]]
        return tables.section(case, meaning, self.base, self.columns)

    def pictures(self, record: Record) -> dict[str, Figure]:
        """Return the plots by file name suffix."""
        return {}

    def page(self, record: Record) -> str:
        """Return the record in Markdown."""
        where = record["environment"]
        versions = ", ".join(f"{name} {v}" for name, v in where["versions"].items() if v)
        machine = [where["cpu"], where.get("instructions"), f"{where['threads']} threads"]
        lines = [
            f"# {self.title} on {where['device']}",
            "",
            f"{', '.join(filter(None, machine))}; {versions}; {where['started']}, "
            f"commit {where['commit'] or 'unknown'}.",
            "",
            self.meaning,
            "",
            *([record["note"], ""] if "note" in record else []),  # written by hand later
            *self.sections(record),
        ]
        if record.get("left_out"):
            lines += ["", f"Not reached within the time budget: {', '.join(record['left_out'])}."]
        return "\n".join(lines) + "\n"

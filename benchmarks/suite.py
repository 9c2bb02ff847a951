"""What a suite of benchmarks is: its cases, who takes part, how they are measured, its page."""

from __future__ import annotations

import argparse
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from matplotlib.figure import Figure

from benchmarks import tables
from benchmarks.command import SUITES
from benchmarks.race import Contestant, Race

Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One table: a name within a group, which is one of the suite's groups in `SUITES`."""

    group: str
    name: str

    @property
    def title(self) -> str:
        """Its sizes in words."""
        return self.name

    @property
    def share(self) -> float:
        """How much longer than the suite's usual `seconds` it is measured."""
        return 1

    @property
    def once(self) -> bool:
        """Whether a record that holds it needs it no more."""
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
    """Cases that one command measures into one record and one page.

    Attributes:
        name: in `SUITES` and of its files.
        title, meaning: of the page; what its numbers mean.
        base: the contestant whom the others are divided by.
        columns: what tables show beside times.
        paces: by "cpu", "cuda" and "quick".
        keeps: whether cases of an earlier record are kept without being asked for.
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
        """The cases on a kind of device, what matters most first; fewer with `options.quick`."""

    @abstractmethod
    def contestants(self, case: C, device: torch.device) -> Sequence[T]:
        """Everyone for a case."""

    @abstractmethod
    def measure(self, case: C, race: Race[T]) -> dict[str, Any]:
        """The `rows` of a race or more, and whatever else the record shall say of the case."""

    def sections(self, record: Record) -> list[str]:
        """The page below what its numbers mean."""
        return [line for case in record["cases"] for line in ["", *self.section(case)]][1:]

    def section(self, case: dict[str, Any]) -> list[str]:
        """A case's part of the page."""
        meaning = SUITES[self.name].groups[case["group"]]
        return tables.section(case, meaning, self.base, self.columns)

    def pictures(self, record: Record) -> dict[str, Figure]:
        """Plots, by what their files' names end in."""
        return {}

    def page(self, record: Record) -> str:
        """The record in Markdown."""
        where = record["environment"]
        versions = ", ".join(f"{name} {v}" for name, v in where["versions"].items() if v)
        lines = [
            f"# {self.title} on {where['device']}",
            "",
            f"{where['cpu']}, {where['threads']} threads; {versions}; {where['started']}, "
            f"commit {where['commit'] or 'unknown'}.",
            "",
            self.meaning,
            "",
            *self.sections(record),
        ]
        if record.get("left_out"):
            lines += ["", f"Not reached within the time budget: {', '.join(record['left_out'])}."]
        return "\n".join(lines) + "\n"

"""Entries of docs/differences.json, and the schema that entries and records must fit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from sparse_attn.comparison.data import FOUND
from website import ROOT

BASELINE = "softmax"
Kind = Literal[
    "trained attention",
    "attention from scratch",
    "swapped attention",
    "healed attention",
    "output layer",
]
SCHEMA = ROOT / "docs/differences.schema.json"
LEAST = 3  # pairs of runs of a comparison that counts


@dataclass(frozen=True)
class Entry:
    """A mapping compared with a baseline on one task by one metric; the schema has the fields."""

    study: str
    task: str
    metric: str
    unit: str
    higher_is_better: bool
    mapping: str
    baseline: str
    control: bool
    difference: float | None
    low: float | None
    high: float | None
    confidence: float
    p: float | None
    detectable: float | None
    interval_over: str
    seeds: int
    lost: int
    kind: Kind
    baseline_learned: bool
    tuned_on_scored_rows: bool
    zeros: float | None
    device: str
    source: str
    record: str | None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def side(self) -> int | None:
        """1 if better, -1 if worse, 0 if not significant; None without an interval."""
        if self.interval is None:
            return None
        low, high = self.interval
        above = 1 if low > 0 else -1 if high < 0 else 0
        return above if self.higher_is_better else -above

    @property
    def counts(self) -> bool:
        """Whether the comparison is fair, has enough runs, and its softmax has learned."""
        known = self.interval is not None and (self.seeds >= LEAST or self.over_examples)
        # most have no interval, because softmax and the mapping find the same ones
        known = known and not self.metric.startswith(FOUND)
        fair = self.baseline_learned and not self.tuned_on_scored_rows and not self.control
        return known and fair

    @property
    def over_examples(self) -> bool:
        """Whether the interval is about one trained model."""
        return self.interval_over == "examples"


def check(value: Any, name: str, where: str) -> None:
    """Raise ValueError, with `where` and the key, if a value does not fit a definition."""
    fault = best_match(_validator(name).iter_errors(value))
    if fault is not None:
        raise ValueError(
            f"{where}: {fault.json_path.removeprefix('$.')}: {fault.message}; "
            f"docs/contribute-results.md says what a {name} holds"
        )


@cache
def _validator(name: str) -> Draft202012Validator:
    """Return the validator of one of the schema's definitions."""
    return Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"][name])


def read(path: Path, name: str) -> list[Any]:
    """Read a JSON file, or each line of a JSONL file, and check it against a definition.

    Raises:
        ValueError: invalid JSON, or content that does not fit; names the file, line and key.
    """
    content, packed = path.read_text(encoding="utf-8"), path.suffix == ".jsonl"
    found = []
    for number, part in enumerate(content.splitlines() if packed else [content], start=1):
        where = f"{path} line {number}" if packed else str(path)
        try:
            found.append(json.loads(part))
        except ValueError as error:
            raise ValueError(f"{where}: expected JSON, got {error}") from None
        check(found[-1], name, where)
    return found

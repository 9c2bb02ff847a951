"""Figures that README and docs quote: results/quoted.yaml says where each stands in the records.

An entry names a page, its text with the figures as format fields, and for each figure a record and
where it stands there. Generated tables are in tests/test_results.py.
"""

import csv
import json
import math
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
QUOTED = yaml.safe_load((ROOT / "results/quoted.yaml").read_text(encoding="utf-8"))
OVER = {"min": min, "max": max, "mean": mean}  # of several rows; without it there must be one
AS = {
    "number": lambda value: value,
    "percent": lambda value: 100 * value,
    "below": lambda value: -value,
    "percent below": lambda value: -100 * value,
    "times faster": lambda value: 1 / value,
    "percent longer": lambda value: 100 * (value - 1),
    "percent shorter": lambda value: 100 * (1 - value),
    "minutes": lambda value: value / 60,
    "exp": math.exp,
}


@cache
def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file: of a table, of a benchmark's cases or a model's mappings, or itself."""
    path = ROOT / name
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return list(csv.DictReader(content.splitlines()))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in content.splitlines()]
    record = json.loads(content)
    if isinstance(record, list):
        return record
    if "cases" in record:
        cases = record["cases"]
        return [{"case": f"{c['group']}: {c['name']}", **row} for c in cases for row in c["rows"]]
    return [record | row for row in record.get("mappings", [{}])]


def at(row: Any, path: str) -> Any:
    """The value at keys and places with dots between; None if there is none."""
    for key in path.split("."):
        row = row[int(key)] if isinstance(row, list) else (row or {}).get(key)
    return row


def value(figure: dict[str, Any]) -> float:
    """The figure as its entry says, from the record."""
    wanted = figure.get("where", {})
    found = [
        float(at(row, figure["take"]))
        for row in rows(figure["in"])
        if all(
            at(row, key) in (one if isinstance(one, list) else [one]) for key, one in wanted.items()
        )
    ]
    if "over" not in figure:
        assert len(found) == 1, f"{len(found)} rows for {figure}"
    return float(AS[figure.get("as", "number")](OVER.get(figure.get("over", ""), mean)(found)))


def figures(entry: dict[str, Any]) -> list[float]:
    """The figures of an entry, each over what they share; several of `take` are several."""
    shared = {key: entry[key] for key in ("in", "where", "take", "as", "over") if key in entry}
    found = []
    for one in entry.get("figures", [{}]):
        where = shared.get("where", {}) | one.get("where", {})
        figure = shared | one | {"where": where}
        takes = figure["take"] if isinstance(figure["take"], list) else [figure["take"]]
        found += [value(figure | {"take": take}) for take in takes]
    return found


@pytest.mark.parametrize(
    "entry", QUOTED, ids=lambda entry: f"{entry['page']}: {entry['text'][:30]}"
)
def test_quoted_figures(entry: dict[str, Any]) -> None:
    said = " ".join(entry["text"].split()).format(*figures(entry))
    page = " ".join((ROOT / entry["page"]).read_text(encoding="utf-8").split())
    assert said in page, f"{entry['page']} does not say: {said}"

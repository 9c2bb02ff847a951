"""Every published page and picture is, byte for byte, what its record gives."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from benchmarks import factored, glue_tables, heads_tables, plots, recording, report

PUBLISHED = Path(__file__).parents[2] / "results/benchmarks"
RECORDS = sorted(path.relative_to(PUBLISHED).as_posix() for path in PUBLISHED.rglob("*.json"))
PAGES: dict[str, Callable[[dict[str, Any]], str]] = {
    "cpu": report.markdown,
    "factored-cpu": factored.markdown,
    "glue-throughput": glue_tables.markdown,
    "heads-cpu": heads_tables.markdown,
    "recording-cpu": recording.markdown,
}


def read(name: str) -> dict[str, Any]:
    return json.loads((PUBLISHED / name).read_text())


@pytest.mark.parametrize("name", RECORDS)
def test_page(name: str) -> None:
    path = PUBLISHED / name
    assert PAGES[path.stem](read(name)) == path.with_suffix(".md").read_text()


def test_pictures(tmp_path: Path) -> None:
    plots.plot(read("cpu.json"), tmp_path, "cpu")
    factored.plot(read("factored-cpu.json"), tmp_path / "factored-cpu.png")
    published = {path.name: path.read_bytes() for path in PUBLISHED.rglob("*.png")}
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made.keys() == published.keys()
    for name, picture in published.items():
        # other versions draw other letters; each writes its number into the file
        if f"Matplotlib version{matplotlib.__version__},".encode() in picture:
            assert made[name] == picture, name

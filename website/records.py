"""What docs/ and tests/ hold of the records in results/.

Run after adding records, which takes about a minute, and commit what changed:
    python -m website.records
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from compare.page import make_page as comparison
from convert.page import make_page as conversion
from experiments.bottleneck.__main__ import main as bottleneck
from experiments.conversion.__main__ import main as conversion_ways
from experiments.language_modeling.__main__ import main as language_modeling
from experiments.multilabel.__main__ import main as multilabel
from glue.__main__ import main as glue
from pipeline.command import input_errors
from pipeline.files import write_json, write_text
from pipeline.report.page import Page
from website import ROOT
from website.differences.write import write as write_differences
from website.results import RESULTS, table

DIGEST = ROOT / "tests/runs_digest.json"
_TABLE = re.compile(r"(<!-- results: (\w+) -->\n\n).*?(\n\n<!-- end of results -->)", re.DOTALL)


def _of_record(make_page: Callable[[dict[str, Any]], Page], arguments: list[str]) -> None:
    """The page of a record, as `--out` of compare and convert writes it."""
    _, record, _, folder = arguments
    make_page(json.loads(Path(record).read_text(encoding="utf-8"))).write(Path(folder))


# by folder of docs/: the program, and what it reports on
REPORTS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "glue-minilm": (glue, "glue/minilm"),
    "multilabel": (multilabel, "multilabel/synthetic"),
    "multilabel-rates": (multilabel, "multilabel/synthetic-rates"),
    "bottleneck": (bottleneck, "bottleneck/small"),
    "bottleneck-alphas": (bottleneck, "bottleneck/small-alphas"),
    "language-models": (language_modeling, "language_modeling"),
    "compare": (partial(_of_record, comparison), "compare/minilm-sts-b.json"),
    "conversion": (partial(_of_record, conversion), "conversion/minilm/entmax-90.json"),
    "conversion-ways": (conversion_ways, "conversion/ways"),
}


def read_records() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every record in results/, and its file."""
    for path in sorted(RESULTS.rglob("*.json*")):
        content = path.read_text(encoding="utf-8")
        for record in content.splitlines() if path.suffix == ".jsonl" else [content]:
            yield path, json.loads(record)


def digest() -> dict[str, Any]:
    """How many runs the sweeps have, and the sha256 of their hashes."""
    hashes = sorted(record["hash"] for _, record in read_records() if "hash" in record)
    return {"runs": len(hashes), "sha256": hashlib.sha256("".join(hashes).encode()).hexdigest()}


def pages_with_tables() -> Iterator[tuple[Path, str]]:
    """Every page with tables of website/results.py, and what it should hold.

    Raises:
        ValueError: there is no such table.
    """
    for path in sorted((ROOT / "docs").rglob("*.md")):
        content = path.read_text(encoding="utf-8")
        if _TABLE.search(content):
            yield path, _TABLE.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", content)


def _write_all() -> None:
    for name, (program, records) in REPORTS.items():
        program(["report", str(RESULTS / records), "--output_dir", str(ROOT / "docs" / name)])
        # report.md is the same, for the site
        (ROOT / "docs" / name / "report.html").unlink()
    print(write_differences(RESULTS, ROOT / "docs"))
    # after the reports: the table of GLUE is the head of its report
    for path, content in pages_with_tables():
        write_text(path, content)
    write_json(DIGEST, digest())


if __name__ == "__main__":
    with input_errors():
        _write_all()

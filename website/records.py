"""What docs/ and tests/ hold of the records in results/.

Run after adding records, which takes some minutes, and commit what changed:
    python -m website.records
"""

from __future__ import annotations

import hashlib
import json
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
from pipeline.files import write_json
from pipeline.report.page import Page
from website import ROOT
from website.differences.write import write as write_differences
from website.results import RESULTS, TABLES, table

DIGESTS = ROOT / "tests/digests.json"


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


def digests() -> dict[str, Any]:
    """How many runs the sweeps have, the sha256 of their hashes, and that of the site's tables."""
    hashes = sorted(record["hash"] for _, record in read_records() if "hash" in record)
    return {
        "runs": len(hashes),
        "hashes": _sha256("".join(hashes)),
        **{f"table {name}": _sha256(table(name)) for name in sorted(TABLES)},
    }


def _sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _write_all() -> None:
    for name, (program, records) in REPORTS.items():
        program(["report", str(RESULTS / records), "--output_dir", str(ROOT / "docs" / name)])
        # report.md is the same, for the site
        (ROOT / "docs" / name / "report.html").unlink()
    print(write_differences(RESULTS, ROOT / "docs"))
    # last: the site's table of GLUE is the head of its report
    write_json(DIGESTS, digests())


if __name__ == "__main__":
    with input_errors():
        _write_all()

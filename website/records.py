"""Write the parts of README, docs/ and tests/ that come from the records in results/.

Run this after adding records (about a minute), and commit the changes:
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

from sparse_attn.cli.errors import input_errors

with input_errors():  # without the extra `report`
    from benchmarks import published
    from experiments.bottleneck.__main__ import main as bottleneck
    from experiments.conversion.__main__ import main as conversion_ways
    from experiments.images.__main__ import main as images
    from experiments.language_modeling.__main__ import main as language_modeling
    from experiments.length.__main__ import main as length
    from experiments.multilabel.__main__ import main as multilabel
    from glue.__main__ import main as glue
    from sparse_attn.comparison.page import make_page as comparison
    from sparse_attn.conversion.page import make_page as conversion
    from sparse_attn.reports.page import Page
    from sparse_attn.system.files import write_json, write_text
    from website import ROOT
    from website.differences.write import write as write_differences
    from website.results import RESULTS, every_record, table

DIGEST = ROOT / "tests/runs_digest.json"
_END = "<!-- end of results -->"
_TABLE = re.compile(rf"<!-- results: (\w+) -->\n\n(?:(?!<!--).)*{_END}", re.DOTALL)
_MARKER = re.compile(r"<!-- (?:results|end of results)")


def _report(program: Callable[[list[str]], None], records: Path, folder: Path) -> None:
    program(["report", str(records), "--output_dir", str(folder)])


def _page(make_page: Callable[[dict[str, Any]], Page], record: Path, folder: Path) -> None:
    """Write the page of a record like `--out` of compare and convert."""
    make_page(json.loads(record.read_text(encoding="utf-8"))).write(folder)


# folder of docs/ -> function that writes it, and its records
REPORTS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "glue-minilm": (partial(_report, glue), "glue/minilm"),
    "glue-mrpc-fair": (partial(_report, glue), "glue/mrpc-fair"),
    "glue-mrpc-h200": (partial(_report, glue), "glue/mrpc-h200"),
    "glue-mrpc-paper": (partial(_report, glue), "glue/mrpc-paper"),
    "multilabel": (partial(_report, multilabel), "multilabel/synthetic"),
    "multilabel-rates": (partial(_report, multilabel), "multilabel/synthetic-rates"),
    "multilabel-raw": (partial(_report, multilabel), "multilabel/synthetic-raw"),
    "bottleneck": (partial(_report, bottleneck), "bottleneck/small"),
    "bottleneck-alphas": (partial(_report, bottleneck), "bottleneck/small-alphas"),
    "length": (partial(_report, length), "length/recall"),
    "images": (partial(_report, images), "images/mnist-few"),
    "language-models": (partial(_report, language_modeling), "language_modeling"),
    "compare": (partial(_page, comparison), "compare/minilm-sts-b.json"),
    "llm-wikitext-4096": (partial(_page, comparison), "compare/smollm2-wikitext-4096.json"),
    "conversion": (partial(_page, conversion), "conversion/minilm/entmax-90.json"),
    "conversion-ways": (partial(_report, conversion_ways), "conversion/ways"),
}


def digest() -> dict[str, Any]:
    """Return the number of runs of all sweeps, and the sha256 of their records."""
    runs = sorted(json.dumps(run, sort_keys=True) for _, run in every_record() if "hash" in run)
    return {"runs": len(runs), "sha256": hashlib.sha256("".join(runs).encode()).hexdigest()}


def pages_with_tables() -> Iterator[tuple[Path, str, list[str]]]:
    """Yield every page with tables of `website.results`, its new content, and the tables' names.

    Raises:
        ValueError: a marker has no end, or there is no such table.
    """
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        content = path.read_text(encoding="utf-8")
        names = _TABLE.findall(content)
        if len(_MARKER.findall(content)) != 2 * len(names):
            raise ValueError(
                f"{path}: expected `<!-- results: NAME -->`, an empty line, and below it `{_END}`, "
                f"{len(names)} of which are whole"
            )
        if names:
            yield path, _TABLE.sub(_filled, content), names


def _filled(found: re.Match[str]) -> str:
    return f"<!-- results: {found[1]} -->\n\n{table(found[1])}\n\n{_END}"


def _write_all() -> None:
    # first, because it raises for records that do not fit
    print(write_differences(RESULTS, ROOT / "docs"))
    for name, (write, records) in REPORTS.items():
        write(RESULTS / records, ROOT / "docs" / name)
        # the site has the same report as report.md
        (ROOT / "docs" / name / "report.html").unlink()
    for path in published.records():
        published.write(path)
    # after the reports: the table of GLUE is the head of its report
    for path, content, _ in list(pages_with_tables()):
        write_text(path, content)
    write_json(DIGEST, digest())


if __name__ == "__main__":
    with input_errors():
        _write_all()

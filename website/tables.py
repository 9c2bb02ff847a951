"""Fill the tables of README and docs/ from the records and reports in results/.

    python -m website.tables             fill them again, after new records
    python -m website.tables --reports   first make every report again

A table stands between two comments. The first names its source and what to take from it, separated
by `|`; several names are separated by `;`. There are three kinds of sources:

    <!-- table: compare/minilm-sts-b/report.md | 1,500 pairs | mapping; exact zeros | top-p* -->
        a table of a report: words of the heading and the line above it, its columns, and patterns
        of its first cells. Without columns or rows, all. With `*` in the path the rows of several
        reports, below each other, with the name of each report's folder.
    <!-- table: compare/ptb-{}*/report.md | windows | mapping; zeros | softmax | 1,024; 4,096 -->
        rows of several reports beside each other: a column for each name in the last part, which
        stands for `{}` in the path, without its commas. In a cell the second column, and the others
        in brackets. Rows are whole first cells.
    <!-- table: benchmarks/llm-cpu.json | SDPA | forward | prefill: 1,024 tokens -->
        times of a benchmark over the time of one contestant: the pass, and a column for each case.

    <!-- end of table -->
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from sparse_attn.comparison.page import make_page as compared
from sparse_attn.conversion.page import make_page as converted
from sparse_attn.reports.table import Table, markdown
from sparse_attn.system.files import write_text
from website import ROOT

RESULTS = ROOT / "results"
# folder of a study -> the program that reports it
STUDIES = {
    "glue/minilm": "glue",
    "glue/mrpc-fair": "glue",
    "glue/mrpc-h200": "glue",
    "glue/mrpc-paper": "glue",
    "multilabel/synthetic": "experiments.multilabel",
    "multilabel/synthetic-rates": "experiments.multilabel",
    "multilabel/synthetic-raw": "experiments.multilabel",
    "multilabel/synthetic-batch64": "experiments.multilabel",
    "bottleneck/small": "experiments.bottleneck",
    "bottleneck/small-alphas": "experiments.bottleneck",
    "length/recall": "experiments.length",
    "length/recall-by-query": "experiments.length",
    "length/flip-flop": "experiments.length",
    "images/mnist-few": "experiments.images",
    "language_modeling": "experiments.language_modeling",
}
_TABLE = re.compile(r"<!-- table: (.+?) -->\n.*?<!-- end of table -->", re.DOTALL)
_ROW = re.compile(r"^\|(.*)\|$")
_CELL = re.compile(r"(?<!\\)\|")


def reports() -> Iterator[str]:
    """Yield the folder, below results/, of every report: of a study, or beside a record."""
    yield from STUDIES
    for kind in ("compare", "conversion/minilm", "conversion/smollm2"):
        for path in sorted((RESULTS / kind).glob("*.json")):
            yield f"{kind}/{path.stem}"


def write_report(name: str, folder: Path) -> None:
    """Make one of `reports` again from its records, into a folder."""
    if name in STUDIES:
        main = import_module(f"{STUDIES[name]}.__main__").main
        main(["report", str(RESULTS / name), "--output_dir", str(folder)])
        return
    record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    make_page = compared if name.startswith("compare/") else converted
    make_page(record).write(folder)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield every page that has tables, and its text with the tables filled.

    Raises:
        ValueError: a marker names no source, no table or no column.
    """
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if "<!-- table:" in text or "<!-- end of table" in text:
            try:
                yield path, fill(text)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None


def fill(text: str) -> str:
    """Return the text with every marked table made again from its source."""
    filled, count = _TABLE.subn(_filled, text)
    if not count == text.count("<!-- table:") == text.count("<!-- end of table -->"):
        raise ValueError("expected `<!-- table: SOURCE -->` and below it `<!-- end of table -->`")
    return filled


def _filled(marker: re.Match[str]) -> str:
    source, *words = (part.strip() for part in marker[1].split("|"))
    if source.endswith(".json"):
        lines = markdown(_ratios(RESULTS / source, *words))
    else:
        rows = (_across if "{}" in source else _copied)(source, *words)
        lines = [f"| {' | '.join(row)} |" for row in rows]
    table = "\n".join(lines).strip()
    return f"<!-- table: {marker[1]} -->\n\n{table}\n\n<!-- end of table -->"


def _copied(pattern: str, above: str = "", columns: str = "", rows: str = "") -> list[list[str]]:
    """Return the cells of a table of reports, with some of its columns and rows."""
    found: list[list[str]] = []
    for path in sorted(RESULTS.glob(pattern)):
        head, rule, *body = _find(path, above)
        wanted = _names(columns) or head
        if missing := set(wanted) - set(head):
            raise ValueError(f"{path}: expected columns {head}, got {sorted(missing)}")
        places = [head.index(name) for name in wanted]
        table = [head, rule, *(row for row in body if _wanted(row[0], rows))]
        picked = [[row[place] for place in places] for row in table]
        if "*" in pattern:
            first = ["record", "---", *[path.parent.name] * (len(picked) - 2)]
            picked = [[cell, *row] for cell, row in zip(first, picked, strict=True)]
        found += picked[2:] if found else picked
    if not found:
        raise ValueError(f"results/{pattern}: no such report")
    return found


def _across(pattern: str, above: str, columns: str, rows: str, names: str) -> list[list[str]]:
    """Return the cells of a table: a row for each first cell, a column for each name."""
    wanted, labels = _names(names), _names(rows)
    table = [[_names(columns)[0], *wanted], ["---", *["---:"] * len(wanted)]]
    table += [[label, *[""] * len(wanted)] for label in labels]
    for place, name in enumerate(wanted, start=1):
        path = pattern.replace("{}", name.replace(",", ""))
        found = [row[1:] for row in _copied(path, above, columns, rows)[2:]]
        got = [label for label, *_ in found]
        if sorted(got) != sorted(labels):
            raise ValueError(f"results/{path}: expected once each of {labels}, got {got}")
        for label, value, *more in found:
            table[2 + labels.index(label)][place] = f"{value} ({', '.join(more)})"
    return table


def _find(path: Path, above: str) -> list[list[str]]:
    """Return the cells of the first table with these words in the heading and the line above it."""
    heading, text, table = "", "", list[list[str]]()
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        if row := _ROW.match(line):
            table.append([cell.strip() for cell in _CELL.split(row[1])])
            continue
        if table and all(words in f"{heading} {text}" for words in _names(above)):
            return table
        table = []
        heading = line if line.startswith("#") else heading
        text = line or text
    raise ValueError(f"{path}: expected a table below {above!r}")


def _ratios(path: Path, base: str, which: str, columns: str, rows: str = "") -> Table:
    """Tabulate times of a pass over those of `base`: a row for each contestant."""
    found = json.loads(path.read_text(encoding="utf-8"))["cases"]
    cases: dict[str, Any] = {f"{case['group']}: {case['name']}": case for case in found}
    cells: dict[str, list[str]] = {}
    wanted = _names(columns)
    for place, name in enumerate(wanted):
        if name not in cases:
            raise ValueError(f"{path}: expected a case of {list(cases)}, got {name!r}")
        for row in cases[name]["rows"]:
            label = row["name"].removeprefix("ours ")
            if row["pass"] == which and row["reason"] is None and _wanted(label, rows):
                line = cells.setdefault(label, [""] * len(wanted))
                zeros = row.get("zeros", 0)
                line[place] = f"{row['to'][base]['median']:.2f}"
                line[place] += f" ({100 * zeros:.1f} %)" if zeros > 1e-3 else ""
    headers = ["mapping", *(name.partition(": ")[2] or name for name in wanted)]
    return Table("", headers, [[label, *line] for label, line in cells.items()])


def _wanted(label: str, rows: str) -> bool:
    return not rows or any(fnmatchcase(label, pattern) for pattern in _names(rows))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(";") if name.strip()]


def main() -> None:
    """Write the tables, and with `--reports` the reports before them."""
    parser = argparse.ArgumentParser(description="Fill the tables of README and docs/.")
    parser.add_argument("--reports", action="store_true", help="first make every report again")
    if parser.parse_args().reports:
        for name in reports():
            write_report(name, RESULTS / name)
    for path, text in pages():
        write_text(path, text)


if __name__ == "__main__":
    main()

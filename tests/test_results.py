"""What is made from results/ is made again from the committed records, byte for byte."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from compare.page import make_page
from convert.page import make_page as conversion_page
from experiments.bottleneck.__main__ import main as bottleneck
from experiments.conversion.__main__ import main as conversion_ways
from experiments.language_modeling.__main__ import main as language_modeling
from experiments.multilabel.__main__ import main as multilabel
from glue.__main__ import main as glue
from pipeline.report import canvas
from pipeline.report.page import Page
from pipeline.sweep.records import hash_of
from tests.figures import blank_panels
from website import results as site

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PINNED = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def of_record(make_page: Callable[[dict[str, Any]], Page], arguments: list[str]) -> None:
    """The page of a record, as `--out` writes it."""
    _, record, _, folder = arguments
    make_page(json.loads(Path(record).read_text(encoding="utf-8"))).write(Path(folder))


# by folder of docs/: the program, and what it reports on
REPORTS = {
    "glue-minilm": (glue, "glue/minilm"),
    "multilabel": (multilabel, "multilabel/synthetic"),
    "multilabel-rates": (multilabel, "multilabel/synthetic-rates"),
    "bottleneck": (bottleneck, "bottleneck/small"),
    "bottleneck-alphas": (bottleneck, "bottleneck/small-alphas"),
    "language-models": (language_modeling, "language_modeling"),
    "compare": (partial(of_record, make_page), "compare/minilm-sts-b.json"),
    "conversion": (partial(of_record, conversion_page), "conversion/minilm/entmax-90.json"),
    "conversion-ways": (conversion_ways, "conversion/ways"),
}
# a line of the table that `report` prints
PRINTED = {
    "glue-minilm": r"^r-softmax +\d\d\.\d\d \([+-]\d\.\d\d\*?\)",
    "multilabel": r"^data +softmax",
    "bottleneck": r"^100 +2 +1\.700 ± 0\.006 +1\.703 ± 0\.006",
    "language-models": r"^plif +1 +0 +0 +184\.73 +178\.50 +-5\.95$",
}
# sha256 of every table that the site makes of results/
TABLES = json.loads((ROOT / "tests/site_tables.json").read_text())


@pytest.fixture(scope="module")
def figures() -> Iterator[list[Figure]]:
    """Every figure that is saved while the reports are made."""
    made: list[Figure] = []

    def watched(figure: Figure, path: Path) -> None:
        made.append(figure)
        save(figure, path)

    save = canvas.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "save", watched)
        yield made


def files(folder: Path) -> set[Path]:
    """Those of a report but for report.html, which shows the same once more."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in paths if path.name != "report.html"}


@pytest.mark.parametrize("name", REPORTS)
def test_reports(
    name: str, tmp_path: Path, figures: list[Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    """The pages, tables and figures under docs/; and no figure has a panel without data."""
    figures.clear()
    main, records = REPORTS[name]
    main(["report", str(RESULTS / records), "--output_dir", str(tmp_path)])
    assert figures
    if name in PRINTED:
        out = capsys.readouterr().out
        assert re.search(PRINTED[name], out, re.MULTILINE), out
        assert out.endswith(f"\n\nreport: {tmp_path / 'report.html'}\n")
        assert max(map(len, out.splitlines())) < 200
    committed = ROOT / "docs" / name
    paths = files(committed)
    assert paths == files(tmp_path)
    drawn = PINNED and version("matplotlib") == PINNED[1]
    for path in paths:
        if path.suffix in (".md", ".csv") or drawn:  # another matplotlib draws other bytes
            same = (committed / path).read_bytes() == (tmp_path / path).read_bytes()
            assert same, f"docs/{name}/{path} is not what the records give"
    assert [blank_panels(figure) for figure in figures] == [[]] * len(figures)


@pytest.mark.parametrize("name", sorted(site.TABLES))
def test_tables_of_the_site(name: str) -> None:
    assert hashlib.sha256(site.table(name).encode()).hexdigest() == TABLES[name]


def records() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(RESULTS.rglob("*.json*")):
        content = path.read_text(encoding="utf-8")
        for line in content.splitlines() if path.suffix == ".jsonl" else [content]:
            yield path, json.loads(line)


def test_hashes_of_runs() -> None:
    """Of every record that has one; and all that the sweeps ever ran are there."""
    hashes = [
        (record["hash"], hash_of({"label": record["mapping"], **record["config"]}), path)
        for path, record in records()
        if "hash" in record
    ]
    assert [path for found, made, path in hashes if found != made] == []
    digest = hashlib.sha256("".join(sorted(found for found, *_ in hashes)).encode()).hexdigest()
    assert f"{len(hashes)} {digest}" == (
        "1840 0aa4b54be3fcaafed601adfbbfc38eae830c12159d2dea89838a9a376a210279"
    )

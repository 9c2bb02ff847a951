"""What README, docs/ and results/ show of the records is made again from them."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from sparse_attn.reports import canvas
from tests.commands import ROOT
from tests.marks import slow, soak
from website import figure, tables

REPORT = """# Title

## One

Scores.

| mapping | score | time |
| --- | ---: | ---: |
| softmax | 1 | 2 |
| r-softmax r=0.5 | 3 | 4 |

## Two

Times.

| mapping | time |
| --- | ---: |
| softmax | 6 |

Scores.

| mapping | score |
| --- | ---: |
| softmax | 5 |
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.md").write_text(REPORT)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    return tmp_path


def filled(marker: str) -> list[str]:
    text = tables.fill(f"<!-- table: {marker} -->\nold\n<!-- end of table -->")
    return [line for line in text.splitlines() if line.startswith("|")]


def test_a_marker_takes_rows_and_columns(results: Path) -> None:
    rule = "| --- | ---: |"
    wanted = ["| mapping | time |", rule, "| r-softmax r=0.5 | 4 |"]
    assert filled("a/report.md | Scores. | mapping; time | r-*") == wanted
    assert filled("a/report.md | Two; Scores.") == ["| mapping | score |", rule, "| softmax | 5 |"]
    stacked = ["| record | score |", rule, "| a | 5 |", "| b | 5 |"]
    assert filled("*/report.md | Two; Scores. | score") == stacked
    beside = ["| mapping | a | b |", "| --- | ---: | ---: |", "| softmax | 1 (2) | 1 (2) |"]
    assert filled("{}*/report.md | One | mapping; score; time | softmax | a; b") == beside


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- table: c/report.md -->\n<!-- end of table -->", "no such report"),
        ("<!-- table: a/report.md | Three -->\n<!-- end of table -->", "below 'Three'"),
        ("<!-- table: a/report.md | Two; Scores. | p -->\n<!-- end of table -->", "got ['p']"),
        ("<!-- table: a/report.md -->\n", "end of table"),
        (
            "<!-- table: {}*/report.md | One | mapping; time | s | a -->\n<!-- end of table -->",
            "expected once each of ['s'], got []",
        ),
    ],
)
def test_a_wrong_marker_is_refused(results: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        tables.fill(text)


def test_tables_are_those_of_the_records() -> None:
    pages = dict(tables.pages())
    assert ROOT / "README.md" in pages
    stale = [path.name for path, text in pages.items() if path.read_text("utf-8") != text]
    assert not stale, "run python -m website.tables"


@pytest.mark.parametrize(
    "name",
    # a thousand runs, of which the other studies of glue have some
    [*slow(*sorted({*tables.reports()} - {"glue/minilm"})), *soak("glue/minilm")],
)
def test_reports_are_those_of_the_records(name: str, tmp_path: Path) -> None:
    tables.write_report(name, tmp_path)
    for path in (path for path in tmp_path.iterdir() if path.suffix in (".md", ".csv")):
        assert path.read_bytes() == (tables.RESULTS / name / path.name).read_bytes(), path.name


def test_the_figure_is_that_of_the_records(tmp_path: Path) -> None:
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if not pinned or version("matplotlib") != pinned[1]:
        pytest.skip("another matplotlib draws other bytes")
    canvas.save(figure.draw(), tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes() == figure.PATH.read_bytes()

"""What is made from results/ is made again from the committed records, byte for byte."""

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from engine.sweep.records import hash_of
from sparse_attn.reports import canvas
from tests.figures import blank_panels
from website import records
from website.records import DIGEST, REPORTS, digest, pages_with_tables
from website.results import RESULTS, TABLES, every_record

ROOT = Path(__file__).parents[1]
PINNED = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
# a line of the table that `report` prints
PRINTED = {
    "glue-minilm": r"^r-softmax +\d\d\.\d\d \([+-]\d\.\d\d\*?\)",
    "multilabel": r"^data +softmax",
    "bottleneck": r"^100 +2 +1\.700 ± 0\.006 +1\.703 ± 0\.006",
    "language-models": r"^plif +1 +0 +0 +184\.73 +178\.50 +-5\.95$",
}


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
    write, of = REPORTS[name]
    write(RESULTS / of, tmp_path)
    assert figures or name == "multilabel-raw"  # one data set has no axis
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


def test_tables_in_the_docs() -> None:
    pages = list(pages_with_tables())
    assert {name for *_, names in pages for name in names} == set(TABLES)
    stale = [path.name for path, content, _ in pages if path.read_text("utf-8") != content]
    assert not stale, "run python -m website.records"


@pytest.mark.parametrize(
    "content",
    [
        "<!-- results: glue -->\n\ntext\n\n<!-- results: demo -->\n\n<!-- end of results -->",
        "<!-- results: glue-x -->\n\n<!-- end of results -->",
        "<!-- results: glue -->\nno empty line\n<!-- end of results -->",
    ],
)
def test_a_broken_marker_is_refused(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/one.md").write_text(content)
    monkeypatch.setattr(records, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"one\.md: expected .* of which are whole"):
        list(pages_with_tables())


def test_every_run_that_the_sweeps_had_is_there() -> None:
    assert digest() == json.loads(DIGEST.read_text()), (
        "records changed, were added or lost; if added, run python -m website.records"
    )


def test_hashes_of_runs() -> None:
    wrong = [
        path
        for path, run in every_record()
        if "hash" in run and run["hash"] != hash_of({"label": run["mapping"], **run["config"]})
    ]
    assert wrong == []

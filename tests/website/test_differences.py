"""docs/differences.json, its schema, figure and page."""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.figures import blank_panels
from website.differences import entries, panels
from website.differences.__main__ import write
from website.differences.entries import Entry
from website.differences.page import make_page

ROOT = Path(__file__).parents[2]
PUBLISHED = [Entry(**found) for found in json.loads((ROOT / "docs/differences.json").read_text())]
ENTRY = Entry(
    **{"study": "some/study", "task": "one", "metric": "accuracy", "unit": "points"},
    **{"higher_is_better": True, "mapping": "sparsemax", "baseline": "softmax"},
    **{"difference": 1.0, "low": 0.5, "high": 1.5, "confidence": 0.95, "interval_over": "seeds"},
    **{"seeds": 3, "diverged": 0, "tuned_on_scored_rows": False, "zeros": None},
    **{"device": "a CPU", "source": "results/some/study"},
)
WORSE = replace(ENTRY, low=-1.5, high=-0.5, difference=-1.0)
EVEN = replace(ENTRY, low=-1.0, high=3.0)
ALONE = replace(ENTRY, low=None, high=None)


def test_what_is_committed_is_what_the_records_give(tmp_path: Path) -> None:
    write(ROOT / "results", tmp_path)
    for name in ("differences.json", "does-it-help.md"):
        same = (ROOT / "docs" / name).read_bytes() == (tmp_path / name).read_bytes()
        assert same, f"docs/{name}: run python -m website.differences"
    assert (tmp_path / "differences.png").stat().st_size > 10_000


def records() -> Iterator[tuple[str, dict[str, Any]]]:
    """An entry, a run and a comparison, each with the name of its definition."""
    yield "entry", vars(PUBLISHED[0])
    runs = (ROOT / "results/bottleneck/small/runs.jsonl").read_text()
    yield "run", json.loads(runs.splitlines()[0])
    path = ROOT / "results/compare/minilm-sts-b.json"
    yield "comparison", json.loads(path.read_text())


def test_the_schema_describes_the_fields() -> None:
    found = entries.schema("entry")
    names = [field.name for field in fields(Entry)]
    assert list(found["properties"]) == found["required"] == names


@pytest.mark.parametrize(("name", "record"), list(records()))
def test_our_check_agrees_with_jsonschema(name: str, record: dict[str, Any]) -> None:
    """On the record, and with each required value missing or of each other type in turn."""
    jsonschema = pytest.importorskip("jsonschema")
    everything = json.loads(entries.SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(everything)
    theirs = jsonschema.Draft202012Validator(entries.schema(name))
    entries.check(record, name, "here")
    assert theirs.is_valid(record)
    refused = 0
    for key in [*entries.schema(name)["required"], "more"]:
        for value in (None, True, -1, 0.5, "text", [], {}, ...):
            changed = deepcopy(record)
            changed.pop(key, None)
            if value is not ...:
                changed[key] = value
            if theirs.is_valid(changed):
                entries.check(changed, name, "here")
                continue
            with pytest.raises(ValueError, match=rf"^here: {key}\b"):
                entries.check(changed, name, "here")
            refused += 1
    assert refused > 30


def test_the_published_entries_fit_jsonschema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(entries.SCHEMA.read_text())
    jsonschema.validate(json.loads((ROOT / "docs/differences.json").read_text()), schema)


def test_sides() -> None:
    assert [entry.side for entry in (ENTRY, WORSE, EVEN, ALONE)] == [1, -1, 0, None]
    assert replace(ENTRY, higher_is_better=False).side == -1
    assert EVEN.half == 2
    assert not replace(ENTRY, tuned_on_scored_rows=True).counts
    assert not ALONE.counts


def test_the_first_line_counts_what_counts() -> None:
    tuned = replace(ENTRY, study="tuned", tuned_on_scored_rows=True)
    sparse = replace(WORSE, zeros=0.5)
    page = make_page([ENTRY, sparse, EVEN, ALONE, tuned])
    assert page.blocks[0] == (
        "In attention, of 1 comparison with softmax, 0 better, 1 worse and 0 not told apart; by "
        "chance about 0.1 would seem to differ. As an output layer or a loss, of 2 comparisons "
        "with softmax, 1 better, 0 worse and 1 not told apart; by chance about 0.1 would seem to "
        "differ. By 95 % intervals that are not adjusted for their number; each metric of the same "
        "runs counts."
    )
    shown = page.markdown()
    assert "not counted: some/study (1)." in shown
    assert "not counted: tuned (1)." in shown


def test_flips_are_named() -> None:
    other = replace(WORSE, metric="F1")
    shown = make_page([ENTRY, other, replace(EVEN, mapping="entmax")]).markdown()
    assert "with the metric for 1 pair of mapping" in shown
    assert "- some/study, sparsemax: better by accuracy, worse by F1 (one)." in shown
    assert (
        "No verdict turns with the metric." in make_page([ENTRY, replace(EVEN, metric="F1")]).blocks
    )


def test_better_is_to_the_right_and_marks_say_what_was_found() -> None:
    less = replace(WORSE, task="two", higher_is_better=False)
    rows = [replace(EVEN, mapping="entmax"), replace(ALONE, mapping="r-softmax", zeros=0.25)]
    figure = panels.draw(panels.panels_of([ENTRY, *rows, less]))
    more, fewer = figure.axes
    assert not more.xaxis_inverted()
    assert fewer.xaxis_inverted()
    labels = [label.get_text() for label in more.get_yticklabels()]
    assert labels == ["sparsemax", "entmax", "r-softmax (25 %)"]
    marks = [line for line in more.lines if line.get_marker() in ("o", "x")]
    assert [line.get_marker() for line in marks] == ["o", "o", "x"]
    assert [line.get_markerfacecolor() == "white" for line in marks[:2]] == [False, True]
    lines = [line for line in more.lines if line.get_marker() == "None"]
    assert len(lines) == 3  # 0, and an interval of each but the cross
    assert blank_panels(figure) == []


def test_many_tasks_share_a_panel() -> None:
    tasks = [replace(ENTRY, task=str(number)) for number in range(panels.FEW + 1)]
    assert [panel.task for panel in panels.panels_of(tasks)] == ["5 tasks"]
    assert len(panels.panels_of(tasks[:-1])) == panels.FEW

"""docs/differences.json and its schema; the figure and the counts of docs/does-it-help.md."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator, validate

from engine.sweep.results import Results
from tests.figures import blank_panels
from website.differences import entries, figure, studies
from website.differences.counts import count
from website.differences.entries import Entry
from website.differences.studies import read_entries, without_entries
from website.differences.write import write

ROOT = Path(__file__).parents[2]
PUBLISHED = [Entry(**found) for found in json.loads((ROOT / "docs/differences.json").read_text())]
ENTRY = Entry(
    **{"study": "some/study", "task": "one", "metric": "accuracy", "unit": "points"},
    **{"higher_is_better": True, "mapping": "sparsemax", "baseline": "softmax"},
    **{"control": False, "difference": 1.0, "low": 0.5, "high": 1.5, "confidence": 0.95},
    **{"p": None, "detectable": 0.75, "interval_over": "seeds"},
    **{"seeds": 3, "lost": 0, "kind": "output layer", "baseline_learned": True},
    **{"tuned_on_scored_rows": False, "zeros": None},
    **{"device": "a CPU", "source": "results/some/study", "record": None},
)
WORSE = replace(ENTRY, low=-1.5, high=-0.5, difference=-1.0)
EVEN = replace(ENTRY, low=-1.0, high=3.0)
ALONE = replace(ENTRY, low=None, high=None)
CONTROL = replace(ENTRY, mapping="temperature-softmax", control=True)


@pytest.mark.slow
def test_what_is_committed_is_what_the_records_give(tmp_path: Path) -> None:
    write(ROOT / "results", tmp_path)
    name = "differences.json"
    same = (ROOT / "docs" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert same, "run python -m website.records"
    assert (tmp_path / "differences.png").stat().st_size > 10_000


def test_the_schema_describes_the_fields() -> None:
    everything = json.loads(entries.SCHEMA.read_text())
    Draft202012Validator.check_schema(everything)
    found = everything["$defs"]["entry"]
    names = [field.name for field in fields(Entry)]
    assert list(found["properties"]) == found["required"] == names


def test_the_published_entries_fit_the_schema() -> None:
    schema = json.loads(entries.SCHEMA.read_text())
    validate(json.loads((ROOT / "docs/differences.json").read_text()), schema)


def test_sides() -> None:
    assert [entry.side for entry in (ENTRY, WORSE, EVEN, ALONE)] == [1, -1, 0, None]
    assert replace(ENTRY, higher_is_better=False).side == -1
    assert not replace(ENTRY, tuned_on_scored_rows=True).counts
    assert not ALONE.counts
    assert not replace(ENTRY, seeds=2).counts
    assert replace(ENTRY, seeds=1, interval_over="examples").counts
    assert not CONTROL.counts
    assert not replace(ENTRY, baseline_learned=False).counts


def test_counts_of_attention() -> None:
    trained = replace(WORSE, kind="trained attention", p=0.03)
    sure = replace(trained, mapping="entmax", p=0.001)
    tuned = replace(trained, tuned_on_scored_rows=True)
    guessing = replace(trained, task="WNLI", baseline_learned=False)
    one = replace(ENTRY, kind="swapped attention", interval_over="examples")
    control = replace(CONTROL, kind="swapped attention")
    assert count([trained, sure, tuned, guessing, one, control, ENTRY]).rows == [
        ["trained with the mapping", "2", "0", "2", "0", "0.1", "0 better, 2 worse"],
        ["swapped, without training", "1", "1", "0", "0", "0.0", "-"],
    ]
    better = replace(sure, low=0.5, high=1.5)
    assert count([better]).rows[0][-1] == "1 better, 0 worse"
    unsure = [replace(trained, p=0.04), replace(sure, p=0.2, low=-1, high=1)]
    assert count(unsure).rows[0][1:] == ["2", "0", "1", "1", "0.1", "0 better, 0 worse"]


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_better_is_to_the_right_and_a_ring_is_not_significant(
    monkeypatch: pytest.MonkeyPatch, higher_is_better: bool
) -> None:
    names = ("entmax, healed", "sparsemax", "r-softmax")
    group = figure.Group("One task", "some/study", "one", names)
    monkeypatch.setattr(figure, "PANELS", {"A title": (group,)})
    some = (replace(ENTRY, zeros=0.25), replace(EVEN, zeros=0.5), replace(ALONE, zeros=0.75))
    found = [replace(e, mapping=n) for e, n in zip(some, names, strict=True)]
    drawn = figure.draw([replace(e, higher_is_better=higher_is_better) for e in found])
    (axes,) = drawn.axes
    assert axes.xaxis_inverted() != higher_is_better
    space = "\N{NO-BREAK SPACE}"
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "One task",
        *(
            f"{n} ({z}{space}% zeros)"
            for n, z in (("entmax", 25), ("sparsemax", 50), ("r-softmax", 75))
        ),
    ]
    marks = [line for line in axes.lines if line.get_marker() in ("o", "x")]
    assert [line.get_marker() for line in marks] == ["o", "o", "x"]
    assert [line.get_markerfacecolor() == "white" for line in marks[:2]] == [False, True]
    assert [list(line.get_ydata()) for line in marks] == [[1], [2], [3]]
    assert blank_panels(drawn) == []
    with pytest.raises(KeyError, match="entmax, healed"):
        figure.draw(found[1:])


def test_nothing_is_cut_in_the_published_figure() -> None:
    drawn = figure.draw(PUBLISHED)
    drawn.draw_without_rendering()
    for axes in drawn.axes:
        for words in (axes.title, *axes.get_yticklabels()):
            box = words.get_window_extent()
            assert box.x0 >= 0, words
            assert box.x1 <= drawn.bbox.width, words


def sweep(folder: Path, study: str, change: Callable[[dict[str, Any]], object]) -> list[Entry]:
    """The entries of a committed sweep, of its first task and with changed records."""
    theirs, ours = ROOT / "results" / study, folder / "results" / study
    ours.mkdir(parents=True)
    (ours / "sweep.json").write_text((theirs / "sweep.json").read_text())
    records = [json.loads(line) for line in (theirs / "runs.jsonl").read_text().splitlines()]
    task = min(record["task"] for record in records)
    records = [record for record in records if record["task"] == task]
    for record in records:
        change(record)
    (ours / "runs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_entries(folder / "results")


def test_a_head_whose_runs_all_diverged_is_an_entry(tmp_path: Path) -> None:
    def diverge(record: dict[str, Any]) -> None:
        if record["mapping"] == "plif" and record["stage"] == "final":
            record.update(status="diverged", results=None, error="NaN")

    found = [e for e in sweep(tmp_path, "bottleneck/small", diverge) if e.mapping == "plif"]
    assert [(e.difference, e.seeds, e.lost) for e in found] == [(None, 0, 3)] * 3


def test_an_infinite_loss_is_an_entry_and_one_that_a_method_lacks_is_not(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["mapping"] == "taylor" and record["stage"] == "final":
            record["results"]["test"]["negll"] = float("inf")

    found = [e for e in sweep(tmp_path, "images/mnist-few", change) if e.metric == "-log p"]
    assert {e.mapping: e.difference is None for e in found} == {
        **{"softmax-abs": False, "spherical": False, "taylor": True}
    }


def test_multilabel_is_compared_with_the_softmax_of_most_thresholds(tmp_path: Path) -> None:
    def on_validation(record: dict[str, Any]) -> None:
        if record["mapping"] == "sigmoid":
            record["results"]["measured_on"] = "validation"

    found = sweep(tmp_path, "multilabel/synthetic", on_validation)
    assert {entry.baseline for entry in found} == {"softmax-fine"}
    assert {entry.mapping for entry in found if entry.control} == {"softmax", "sigmoid"}
    assert {entry.mapping for entry in found if entry.tuned_on_scored_rows} == {"sigmoid"}


def test_perplexity_of_a_model_is_relative() -> None:
    record = json.loads((ROOT / "results/compare/smollm2-wikitext-4096.json").read_text())
    task = f"{record['source']}, 4,096 tokens"
    (entry,) = (e for e in PUBLISHED if (e.task, e.mapping) == (task, "top-p-softmax p=0.8"))
    (row,) = (row for row in record["mappings"] if row["mapping"] == entry.mapping)
    relative = 100 * row["against_softmax"]["value"] / record["softmax"]
    assert (entry.difference, entry.unit) == (pytest.approx(relative, rel=1e-5), "%")


def test_controls_of_the_published_entries() -> None:
    assert {entry.mapping for entry in PUBLISHED if entry.control} == {
        "sigmoid",
        "softmax",
        "temperature-softmax",
    }


def test_a_smoke_sweep_is_refused(tmp_path: Path) -> None:
    smoke = Results(tmp_path, SimpleNamespace(limit=48), 0, {}, [])
    _, differences = studies.SWEEPS["glue"]
    with pytest.raises(ValueError, match=r"expected whole tasks, .* limit=48; take it out"):
        list(differences(smoke))


def test_records_that_give_nothing_are_named(tmp_path: Path) -> None:
    sweep(tmp_path, "bottleneck/small", lambda record: None)
    empty = SimpleNamespace(read=lambda folder: Results(folder, None, 0, {}, []))
    for name in ("mine", "glue/mine"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "sweep.json").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(studies.SWEEPS, "glue", (empty, lambda results: iter(())))
        found = without_entries(tmp_path / "results", read_entries(tmp_path / "results"))
    assert found == [
        "results/glue/mine (no final runs of softmax and a mapping with the same seeds)",
        "results/mine (a sweep, and not below glue, multilabel, images, language_modeling, "
        "bottleneck or length)",
    ]

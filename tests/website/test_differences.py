"""docs/differences.json, its schema, figure and page."""

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
from website.differences import entries, panels, studies
from website.differences.entries import Entry
from website.differences.page import make_page
from website.differences.studies import read_entries
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
LOST = replace(ALONE, mapping="t-softmax", difference=None, seeds=0, lost=3)


@pytest.mark.slow
def test_what_is_committed_is_what_the_records_give(tmp_path: Path) -> None:
    write(ROOT / "results", tmp_path)
    for name in ("differences.json", "does-it-help.md"):
        same = (ROOT / "docs" / name).read_bytes() == (tmp_path / name).read_bytes()
        assert same, f"docs/{name}: run python -m website.records"
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


@pytest.mark.slow
def test_the_first_lines_count_attention() -> None:
    trained = replace(WORSE, kind="trained attention", p=0.03)
    sure = replace(trained, mapping="entmax", p=0.001)
    tuned = replace(trained, study="tuned", tuned_on_scored_rows=True)
    guessing = replace(trained, study="hard", task="WNLI", baseline_learned=False)
    one = replace(ENTRY, kind="swapped attention", interval_over="examples")
    control = replace(CONTROL, kind="swapped attention")
    page = make_page([trained, sure, tuned, guessing, one, control])
    table, which = page.blocks[:2]
    assert table.rows == [
        ["models trained with the mapping, over runs", "2", "0", "2", "0", "0.1", "0", "2"],
        ["swapped in a trained model, over examples", "1", "1", "0", "0", "0.0", "-", "-"],
    ]
    assert [(row[0], *row[-2:]) for row in which.rows] == [
        ("sparsemax", "worse", "worse"),
        ("entmax", "worse", "worse"),
        ("sparsemax", "better", "-"),
    ]
    better = replace(trained, low=0.5, high=1.5)
    assert make_page([better]).blocks[0].rows[0][-2:] == ["1", "0"]
    less = make_page([replace(trained, p=0.04), replace(sure, p=0.2, low=-1, high=1)])
    assert less.blocks[0].rows[0][-2:] == ["0", "0"]
    assert less.blocks[1].rows[0][-2:] == ["worse", "not significant"]
    shown = page.markdown()
    assert "| settings chosen by the very scores that are compared | tuned (1) |" in shown
    assert "| controls | temperature-softmax (some/study) |" in shown
    assert "| controls better than softmax | temperature-softmax (some/study) |" in shown
    assert "no better than always the most frequent class | WNLI (hard) |" in shown


def test_other_layers_have_a_row_for_each_mapping_and_no_sum() -> None:
    second = replace(WORSE, metric="F1")
    other = replace(WORSE, study="other", baseline="softmax-fine", task="two")
    page = make_page([ENTRY, second, EVEN, replace(ALONE, seeds=1), CONTROL, other])
    layers = page.blocks[0]
    assert layers.rows == [
        ["some/study", "accuracy", "sparsemax", "softmax", "1", "0", "1"],
        ["other", "accuracy", "sparsemax", "softmax-fine", "0", "1", "0"],
    ]
    assert "| fewer than 3 pairs of runs | some/study (1) |" in page.markdown()


def test_what_diverged_is_named() -> None:
    some = replace(ENTRY, mapping="entmax", lost=1)
    shown = make_page([ENTRY, some, LOST]).markdown()
    assert "entmax (some/study, one, accuracy: 1); t-softmax" in shown
    assert "t-softmax (some/study, one, accuracy: 3) |" in shown
    assert "| t-softmax | softmax | - | 0 | - | no finite value |" in shown


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (-0.71, -0.0012, "-0.355 \\[-0.710, -0.001\\]"),
        (-0.71, -0.5, "-0.35 \\[-0.71, -0.50\\]"),
        (0.0, 0.0, "-0.35 \\[+0.00, +0.00\\]"),
    ],
)
def test_digits_show_the_sign_of_the_ends(low: float, high: float, shown: str) -> None:
    entry = replace(ENTRY, difference=-0.3549, low=low, high=high)
    assert f"| {shown} |" in make_page([entry]).markdown()


def test_flips_are_named() -> None:
    other = replace(WORSE, metric="F1")
    shown = make_page([ENTRY, other, replace(EVEN, mapping="entmax")]).markdown()
    assert "| some/study | sparsemax | one | accuracy | F1 |" in shown
    models = [replace(ENTRY, record="a"), replace(WORSE, record="b", metric="F1")]
    even = [ENTRY, replace(EVEN, metric="F1")]
    for some in (models, even):
        assert "| better by |" not in make_page(some).markdown()


def test_better_is_to_the_right_and_marks_say_what_was_found() -> None:
    less = replace(WORSE, task="two", higher_is_better=False)
    rows = [replace(EVEN, mapping="entmax"), replace(ALONE, mapping="r-softmax", zeros=0.25)]
    figure = panels.draw(panels.panels_of([ENTRY, *rows, less]))
    more, fewer = figure.axes
    assert not more.xaxis_inverted()
    assert fewer.xaxis_inverted()
    labels = [label.get_text() for label in more.get_yticklabels()]
    assert labels == ["sparsemax", "entmax", "r-softmax (25\N{NO-BREAK SPACE}%)"]
    marks = [line for line in more.lines if line.get_marker() in ("o", "x")]
    assert [line.get_marker() for line in marks] == ["o", "o", "x"]
    assert [line.get_markerfacecolor() == "white" for line in marks[:2]] == [False, True]
    lines = [line for line in more.lines if line.get_marker() == "None"]
    assert len(lines) == 3  # 0, and an interval of each but the cross
    assert blank_panels(figure) == []


def test_what_is_off_the_scale_has_its_number_at_the_edge() -> None:
    names = ("entmax", "t-softmax", "sparsemax", "taylor-softmax")
    near = [replace(ENTRY, mapping=name) for name in names[:3]]
    far = replace(ENTRY, mapping=names[3], difference=-300.0, low=-350.0, high=-250.0)
    (axes,) = panels.draw(panels.panels_of([*near, far])).axes
    assert axes.get_xlim() == (-panels.FAR * 1.5, panels.FAR * 1.5)
    assert [(text.get_text(), text.get_ha()) for text in axes.texts] == [("-300", "left")]
    lower = [replace(entry, higher_is_better=False) for entry in (*near, far)]
    (axes,) = panels.draw(panels.panels_of(lower)).axes
    assert [(text.get_text(), text.get_ha()) for text in axes.texts] == [("-300", "right")]
    assert axes.xaxis_inverted()
    unsure = replace(far, difference=1.0, low=-300.0, high=302.0)
    for others in ([], [unsure]):  # a long interval alone is cut off
        (axes,) = panels.draw(panels.panels_of([*near, *others])).axes
        assert not axes.texts


def test_records_of_one_study_are_told_apart() -> None:
    first, second = (replace(ENTRY, source=name, record=name) for name in ("minilm", "a-long-name"))
    figure = panels.draw(panels.panels_of([first, second]))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["minilm: sparsemax", "a-long-name: sparsemax"]
    assert "| a-long-name: sparsemax |" in make_page([first, second]).markdown()


@pytest.mark.slow
def test_nothing_is_cut_in_the_published_figure() -> None:
    found = [entry for entry in PUBLISHED if entry.difference is not None and not entry.control]
    figure = panels.draw(panels.panels_of(found))
    figure.draw_without_rendering()
    for axes in figure.axes:
        for words in (axes.title, axes.xaxis.label, *axes.get_yticklabels()):
            box = words.get_window_extent()
            assert box.x0 >= 0, words
            assert box.x1 <= figure.bbox.width, words


def test_many_tasks_share_a_panel() -> None:
    tasks = [replace(ENTRY, task=str(number)) for number in range(panels.FEW + 1)]
    assert [panel.task for panel in panels.panels_of(tasks)] == ["5 tasks"]
    assert len(panels.panels_of(tasks[:-1])) == panels.FEW
    shown = make_page(tasks).markdown()
    assert "- some/study: 0, 1, 2, 3 and 4." in shown
    assert "### some/study" not in shown


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
        found = write(tmp_path / "results", tmp_path)
    assert found.endswith(
        "Not among them: results/glue/mine (no final runs of softmax and a mapping with the same "
        "seeds), results/mine (a sweep, and not below glue, multilabel, images, "
        "language_modeling or bottleneck)"
    )

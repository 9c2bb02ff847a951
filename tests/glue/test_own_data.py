"""A user's labelled files: what is read from them, held out, recorded and reported."""

import csv
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from glue.__main__ import main
from glue.check import CheckConfig
from glue.config import RunConfig
from glue.data import described
from glue.plan import make_plan
from glue.summary import next_commands
from glue.sweep import SweepConfig
from sparse_attn.engine.command import from_dict
from sparse_attn.engine.sweep import run as sweep_run
from sparse_attn.evaluation.data import load_task, read_split
from sparse_attn.evaluation.labelled_files import task_of_files
from sparse_attn.mappings import get_spec
from tests.engine.sweep.inline import Inline
from tests.glue.make_glue import ENTRY, written_task
from tests.glue.running import MAPPINGS, parsed, prepared, sweep, trained

ROWS = 40
OPTIONS = {"text_columns": "premise,hypothesis", "label_column": "verdict"}


def label_file(path: Path, labels: list[Any]) -> Path:
    """A file with these labels, a row each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "premise", "hypothesis", "verdict"])
        writer.writerows([n, f"text {n}", f"other {n}", label] for n, label in enumerate(labels))
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return label_file(tmp_path / "pairs.csv", ["no", "yes"] * (ROWS // 2))


def run_of(file: Path, **changes: Any) -> RunConfig:
    given = {"train_file": str(file), "model": "some/model", "output_dir": "o", **OPTIONS}
    return RunConfig(**{**given, **changes})


def test_a_task_is_read_from_a_file(pairs: Path, tmp_path: Path) -> None:
    task = task_of_files((pairs,), ("premise", "hypothesis"), "verdict")
    assert (task.name, task.labels, task.metrics) == ("pairs.csv", ("no", "yes"), ("accuracy",))
    assert (task.splits, task.dev_splits) == ({"train": "pairs.csv"}, ("held_out",))
    other = label_file(tmp_path / "more" / "dev.csv", ["yes", "no"])
    task = task_of_files((pairs, other), ("premise",), "verdict")
    assert task.splits == {"train": "pairs.csv", "dev": "more/dev.csv"}
    assert load_task(task)["dev"].to_dict() == {"text_a": ["text 0", "text 1"], "label": [1, 0]}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["b", "c", "a", "b"], ("a", "b", "c")),
        ([10, 9, 0, 10], ("0", "9", "10")),
        ([0.5, 1.5, 2.5], ("0.5", "1.5", "2.5")),
        ([n / 8 for n in range(40)], None),
        (range(40), tuple(map(str, range(40)))),
        ([*(n / 8 for n in range(40)), "none"], (*sorted(str(n / 8) for n in range(40)), "none")),
    ],
)
def test_labels_or_scores(labels: Any, expected: Any, tmp_path: Path) -> None:
    file = label_file(tmp_path / "a.csv", list(labels))
    task = task_of_files((file,), ("premise",), "verdict")
    assert task.labels == expected
    assert task.regression == (expected is None)


def test_what_a_file_was_taken_for_is_said(tmp_path: Path) -> None:
    file = label_file(tmp_path / "a.csv", [n / 8 for n in range(40)])
    other = label_file(tmp_path / "b.csv", [0.5, 1.5])
    task = task_of_files((file, other), ("premise",), "verdict")
    assert described(task, load_task(task)) == (
        "a.csv: 40 rows, 2 rows of b.csv to evaluate on (2 with the texts of training rows, which "
        "makes scores too good), a regression, 0 to 4.875"
    )


def test_labels_of_json_are_spelled_as_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"premise": "x", "verdict": value} for value in (True, False) * 10]
    file.write_text("\n".join(map(json.dumps, rows)))
    task = task_of_files((file,), ("premise",), "verdict")
    assert task.labels == ("false", "true")
    assert load_task(task)["train"]["label"][:2] == [1, 0]


@pytest.mark.parametrize("from_yaml", [False, True])
def test_a_tenth_is_held_out(from_yaml: bool, pairs: Path, tmp_path: Path) -> None:
    task = task_of_files((pairs,), ("premise", "hypothesis"), "verdict")
    if from_yaml:
        entry = ENTRY.replace(", dev: data/dev.csv", "").replace("train.csv", "pairs.csv")
        task = written_task(tmp_path, entry.replace("[entails, contradicts]", '["no", "yes"]'))
    data = load_task(task)
    places = {split: rows["row"][:] for split, rows in data.items()}
    assert len(places["held_out"]) == ROWS // 10
    assert sorted(places["train"] + places["held_out"]) == list(range(ROWS))
    assert places["held_out"] != list(range(ROWS // 10))
    for split, rows in data.items():
        assert rows["text_a"][:] == [f"text {place}" for place in places[split]]
        assert read_split(task, None, split).to_dict() == rows.to_dict()
    assert load_task(task)["held_out"].to_dict() == data["held_out"].to_dict()


def test_a_run_is_known_by_its_data(pairs: Path, tmp_path: Path) -> None:
    found = run_of(pairs).comparable()
    assert str(tmp_path) not in json.dumps(found)
    assert found["task"]["labels"] == ["no", "yes"]
    copied = label_file(tmp_path / "copy" / "pairs.csv", ["no", "yes"] * (ROWS // 2))
    assert run_of(copied, text_columns=["premise", "hypothesis"]).comparable() == found
    changed = label_file(tmp_path / "changed" / "pairs.csv", ["yes", "no"] * (ROWS // 2))
    for other in (run_of(changed), run_of(pairs, text_columns="premise")):
        assert other.comparable() != found
    assert not {"train_file", "sha256"} & set(
        RunConfig(task="RTE", model="m", output_dir="o").comparable()
    )


def test_a_sweep_of_a_file(pairs: Path) -> None:
    given = sweep(tasks=None, train_file=str(pairs), **OPTIONS)
    assert given.task_names == ["pairs.csv"]
    assert from_dict(SweepConfig, json.loads(json.dumps(asdict(given)))) == given
    plan = make_plan(given)
    assert plan.cells == [("pairs.csv", mapping) for mapping in MAPPINGS]
    for run in plan.due({}):
        assert (run.config.task, run.config.train_file) == (None, str(pairs))
        assert run.config.task_of_run().labels == ("no", "yes")


@pytest.mark.parametrize(
    ("mapping", "name", "ramp"),
    [
        ("entmax:alpha=1.5", "entmax", ("alpha", 1.0, 1.5)),
        ("r-softmax:r=0.15", "r-softmax", ("r", 0.0, 0.15)),
        ("top-p-softmax:p=0.9", "top-p-softmax", ("p", 1.0, 0.9)),
        # half of a linear ramp of t or k would have no zeros
        ("top-k-softmax:k=8", "mixed-top-k-softmax", ("mix", 0.0, 1.0)),
        ("scaled-entmax:alpha=1.5", "scaled-entmax", ("alpha", 1.0, 1.5)),
        ("sparsegen:lam=0.5", "mixed-sparsegen", ("mix", 0.0, 1.0)),
        ("mixed-sparsemax", "mixed-sparsemax", ("mix", 0.0, 1.0)),
        ("plif:knots=5", "plif", None),
        ("softmax:sink=0", "softmax", None),
    ],
)
def test_a_check_ramps_every_mapping(mapping: str, name: str, ramp: Any, pairs: Path) -> None:
    given = CheckConfig(train_file=str(pairs), mappings=mapping, **OPTIONS).sweep()
    label = mapping.replace(":", " ")
    assert list(given.mappings) == ["softmax", label]
    candidate = given.mappings[label]
    assert candidate.name == name
    (values,) = candidate.combinations
    schedule = candidate.with_params(values).schedule_of_run()
    assert (schedule and (schedule.parameter, schedule.initial, schedule.final)) == ramp
    assert set(values) >= {pair.partition("=")[0] for pair in mapping.split(":")[1:]}
    assert get_spec(name).name == name


@pytest.mark.parametrize(
    ("mappings", "error"),
    [
        ("entmax:alpha=1.5,softmax", "mappings=softmax: is always included; name what to compare"),
        ("scaled-softmax", "mappings=scaled-softmax: a check ramps .* scaled-softmax has no ramp"),
        ("entmax:alpha=1.0", "mappings=entmax alpha=1.0: a check ramps alpha in from 1, so nothi"),
    ],
)
def test_a_check_refuses_what_it_cannot_ramp(mappings: str, error: str, pairs: Path) -> None:
    with pytest.raises(ValueError, match=error):
        CheckConfig(train_file=str(pairs), mappings=mappings, **OPTIONS).sweep()


def test_the_next_command_trains_as_the_check_did(pairs: Path) -> None:
    words = ["--text_columns", "premise,hypothesis", "--label_column", "verdict"]
    words += ["--mappings", "entmax:alpha=1.5,sparsemax", "--train.epochs", "1"]
    given = parsed(["check", "--train_file", str(pairs), *words]).sweep()
    plan = make_plan(given)
    done = [
        run.record(status="finished", results={"score": run.config.train.learning_rate})
        for runs in plan.first.values()
        for run in runs
    ]
    trials = {record.hash: record for record in done}
    finals = [run for runs in plan.finals(trials).values() for run in runs]
    found = [run.record(status="finished") for run in finals]
    lines = next_commands(given, found)
    assert [line.partition(": ")[0] for line in lines] == [
        "next, for entmax alpha=1.5",
        "next, for sparsemax",
    ]
    for line, first in zip(lines, (finals[3], finals[6]), strict=True):
        _, _, options = line.partition(" glue train ")
        run = parsed(["train", *shlex.split(options)])
        assert run.train.learning_rate == 1e-4
        assert (run.train, run.mapping) == (first.config.train, first.config.mapping)
        assert run.task_of_run() == first.config.task_of_run()


def command(pairs: Path, model: Path, *more: str) -> list[str]:
    options = {"train_file": pairs, "model": model, "train.epochs": 1, "train.batch_size": 8}
    words = [word for name, value in (options | OPTIONS).items() for word in (f"--{name}", value)]
    return [*map(str, words), *more]


def test_one_file_is_enough_to_train(
    pairs: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    main(["train", *command(pairs, tiny_model, "--output_dir", str(folder))])
    said = capsys.readouterr().out
    about = "held out, one row is 25.0 points, 2 labels: no (20 rows), yes (20 rows)\n"
    assert f"pairs.csv: {ROWS} rows, {ROWS // 10} {about}" in said
    assert "are cut" not in said
    assert f"pairs.csv, {ROWS // 10} held_out" in said
    results = json.loads((folder / "results.json").read_text())
    assert results["rows"] == {"train": ROWS - ROWS // 10, "held_out": ROWS // 10}
    assert results["cut"] == {"train": 0, "held_out": 0}
    found = results["predictions"]["held_out"]
    assert found["labels"] == [row % 2 for row in found["rows"]]
    held_out = load_task(task_of_files((pairs,), ("premise", "hypothesis"), "verdict"))["held_out"]
    assert found["rows"] == held_out["row"][:]


@pytest.mark.parametrize("longest", [5, 6, 7])
def test_rows_that_are_cut_are_counted(
    longest: int, pairs: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not those that just fit."""
    rows = [f"{'a' * (n % 8 + 1)},{'xy'[n % 2]}" for n in range(ROWS)]  # a token a letter
    pairs.write_text("\n".join(["premise,verdict", *rows]))
    more = ["--output_dir", str(tmp_path / "run"), "--text_columns", "premise"]
    run = prepared(["train", *command(pairs, tiny_model, *more, f"--train.max_length={longest}")])
    cut = ROWS * (8 - (longest - 2)) // 8
    line = f"{cut} of {ROWS} rows have more than {longest} tokens and are cut there; --train.max_le"
    assert line in capsys.readouterr().out
    assert sum(trained(run)["cut"].values()) == cut
    for part in run.data.values():
        assert max(map(len, part["input_ids"])) == longest


def test_rows_held_out_of_a_file_name_their_places(
    pairs: Path, tiny_model: Path, tmp_path: Path
) -> None:
    more = ["--output_dir", str(tmp_path / "run"), "--selection", "0.25"]
    results = trained(prepared(["train", *command(pairs, tiny_model, *more)]))
    found = results["predictions"]["selection"]
    assert len(found["rows"]) == round(0.25 * 0.9 * ROWS)
    assert found["labels"] == [row % 2 for row in found["rows"]]


@pytest.mark.slow
def test_a_check(
    pairs: Path,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sweep_run, "make_pool", Inline)
    folder = tmp_path / "check"
    more = ["--mappings", "entmax:alpha=1.5", "--output_dir", str(folder)]
    words = ["check", *command(pairs, tiny_model, *more)]
    main([*words, "--dry_run", "--train.max_length=5"])
    assert f"{ROWS} of {ROWS} rows have more than 5 tokens and are cut" in capsys.readouterr().out
    main([*words, "--dry_run"])
    said = capsys.readouterr().out
    assert "runs: 12 of 12 are due" in said
    assert "4 held out, one row is 25.0 points" in said
    assert "trials are scored on 4 training rows, one row is 25.0 points" in said
    assert "are cut" not in said
    assert not folder.exists()
    main(words)
    said = capsys.readouterr().out
    assert all(
        word in said
        for word in ("Verdict", "softmax", "entmax alpha=1.5", "report: ", "next, for entmax")
    )
    page = (folder / "report.md").read_text()
    assert page.startswith("# pairs.csv: sweep check\n")
    assert "Chosen by chance" in page
    # a finished check is only reported again
    main(words)
    assert Inline.order == []
    assert "next, for entmax" in capsys.readouterr().out

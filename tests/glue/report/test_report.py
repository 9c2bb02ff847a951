"""The three files, from sweeps whole, half done and broken."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glue.report.published import published
from glue.report.tables import majority
from glue.sweep import CandidateConfig
from sparse_attn.reports import bootstrap
from tests.glue.report.make_sweep import (
    LABELS,
    add,
    fill,
    guesses,
    make_config,
    planned,
    ramp,
    write_sweep,
)
from tests.glue.running import read_sweep, report


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few resamples, and no plots, which test_plots.py is about."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 199)
    monkeypatch.setattr("glue.report.make_plots", lambda sweep, task: [])


def read_csv(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    with (folder / "report.csv").open(newline="", encoding="utf-8") as file:
        return {(line["task"], line["mapping"]): line for line in csv.DictReader(file)}


def pages(folder: Path) -> tuple[str, str]:
    return tuple((folder / f"report.{end}").read_text(encoding="utf-8") for end in ("html", "md"))


def test_a_whole_sweep(tmp_path: Path) -> None:
    fill(tmp_path, make_config(seeds=4), {"softmax": 0.9, "sharp": 0.6})
    made = report(tmp_path)
    assert made.path == tmp_path / "report.html"
    shown = next(line for line in str(made).splitlines() if line.startswith("sharp "))
    assert " worse " in shown
    line = read_csv(tmp_path)["RTE", "sharp"]
    scores = [float(np.mean(guesses(LABELS, 0.6, 100 + i) == LABELS)) for i in range(4)]
    base = [float(np.mean(guesses(LABELS, 0.9, i) == LABELS)) for i in range(4)]
    assert list(ast.literal_eval(line["values"]).values()) == scores
    assert float(line["mean"]) == pytest.approx(np.mean(scores))
    assert float(line["sd"]) == pytest.approx(np.std(scores, ddof=1))
    assert float(line["difference"]) == pytest.approx(np.mean(scores) - np.mean(base))
    assert line["verdict"] == "worse"
    assert float(line["paper"]) == 52.71
    assert float(line["paper_difference"]) == pytest.approx(52.71 - 68.95)
    assert line["paired_seeds"] == "4"
    html, plain = pages(tmp_path)
    assert "| worse |" in plain
    assert "<td>worse</td>" in html
    for page in (html, plain):
        assert "Incomplete" not in page
        assert f"{100 * np.mean(scores):.2f}" in page
        assert "Runs: 12 of 12. Failed: 0. Diverged: 0." in page


def test_labels_and_errors_are_text(tmp_path: Path) -> None:
    nasty = "<b>|*$x_1$ & co"
    mappings = {
        "softmax": CandidateConfig("softmax"),
        nasty: CandidateConfig("mixed-sparsemax", {"mix": 1.0}, schedule=ramp("mix")),
    }
    fill(tmp_path, make_config(mappings=mappings, seeds=4))
    add(tmp_path, nasty, "final", 3, status="failed", error="Boom\n<script>alert(1)</script> | x")
    report(tmp_path)
    html, plain = pages(tmp_path)
    assert "<b>" not in html
    assert "&lt;b&gt;|*$x_1$ &amp; co" in html
    assert "<script" not in html
    assert r"\<b\>\|\*\$x\_1\$ \& co" in plain
    assert "<b>" not in plain
    tables = [line for line in plain.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) > 2 for line in tables)
    assert ("RTE", nasty) in read_csv(tmp_path)


def test_output_dir(tmp_path: Path) -> None:
    fill(tmp_path / "sweep", make_config())
    assert report(tmp_path / "sweep", tmp_path / "a/b").path == tmp_path / "a/b/report.html"
    assert not (tmp_path / "sweep/report.html").exists()
    assert sorted(p.name for p in (tmp_path / "a/b").iterdir()) == [
        "differences.png",
        "report.csv",
        "report.html",
        "report.md",
    ]


def test_failed_and_diverged_runs_are_counted(tmp_path: Path) -> None:
    config = make_config()
    mappings = config.mappings | {"late": config.mappings["sharp"]}
    write_sweep(tmp_path, make_config(mappings=mappings))
    for index in range(3):
        add(tmp_path, "softmax", "final", index, LABELS, LABELS)
    add(tmp_path, "sharp", "trial", 0, status="diverged", error="DivergedError: NaN")
    add(tmp_path, "sharp", "final", 0, status="failed", error="MemoryError: 1\nKilled: 9")
    add(tmp_path, "late", "trial", 1, status="failed", error="\n")
    report(tmp_path)
    for label, counts in (("sharp", ("1", "1", "0")), ("late", ("1", "0", "0"))):
        line = read_csv(tmp_path)["RTE", label]
        assert (line["failed"], line["diverged"], line["runs"]) == counts
        assert line["mean"] == line["difference"] == line["p"] == ""
    html, plain = pages(tmp_path)
    for page in (html, plain):
        assert "Failed: 2. Diverged: 1." in page
        assert "Killed: 9" in page
        assert "MemoryError" not in page
        assert "no reason given" in page


def test_a_half_done_sweep_says_so_first(tmp_path: Path) -> None:
    write_sweep(tmp_path, make_config(tasks={"RTE": None, "MRPC": None}))
    add(tmp_path, "softmax", "trial", 0, LABELS, LABELS, split="selection")
    add(tmp_path, "sharp", "final", 0, LABELS, LABELS)  # and its two trials
    said = "Incomplete. Runs: 4 of 20."
    assert str(report(tmp_path)).startswith(said)
    html, plain = pages(tmp_path)
    for page in (html, plain):
        assert said in page
    assert plain.splitlines()[2].startswith(f"**{said}")


def test_where_every_trial_diverged_no_final_run_is_missing(tmp_path: Path) -> None:
    fill(tmp_path, make_config(mappings={"softmax": CandidateConfig("softmax")}))
    write_sweep(tmp_path, make_config())
    for index in range(2):
        add(tmp_path, "sharp", "trial", index, status="diverged")
    sweep = read_sweep(tmp_path)
    assert sweep.expected == len(sweep.records) == 2 + 3 + 2


def test_one_seed_is_never_significant(tmp_path: Path) -> None:
    fill(tmp_path, make_config(seeds=1), {"softmax": 0.95, "sharp": 0.5})
    report(tmp_path)
    line = read_csv(tmp_path)["RTE", "sharp"]
    assert float(line["high"]) < 0
    assert line["verdict"] == "not judged"
    assert line["sd"] == line["p"] == line["p_holm"] == line["detectable"] == ""
    assert "not judged" in pages(tmp_path)[0]


def test_only_seeds_and_examples_that_both_have_are_paired(tmp_path: Path) -> None:
    write_sweep(tmp_path, make_config(seeds=5))
    ones = np.ones_like(LABELS)
    for seed, predicted in ((0, 1 - LABELS), (1, ones), (2, ones), (4, ones[:50])):
        add(tmp_path, "softmax", "final", seed, predicted, LABELS[: len(predicted)])
    for seed in (1, 2, 3, 4):
        add(tmp_path, "sharp", "final", seed, ones, LABELS)
    report(tmp_path)
    line = read_csv(tmp_path)["RTE", "sharp"]
    assert (line["paired_seeds"], float(line["difference"])) == ("2", 0)
    assert (line["one_class"], read_csv(tmp_path)["RTE", "softmax"]["one_class"]) == ("4", "3")


@pytest.mark.parametrize(
    ("task", "constant", "predict"),
    [
        ("CoLA", 0.0, lambda i: guesses(LABELS, 0.8, i)),
        ("STS-B", None, lambda i: LABELS + np.random.default_rng(i).normal(size=len(LABELS))),
        ("MNLI", max(LABELS.mean(), 1 - LABELS.mean()), lambda i: guesses(LABELS, 0.8, i)),
    ],
)
def test_tasks_with_other_metrics(
    tmp_path: Path, task: str, constant: float | None, predict: Callable[[int], np.ndarray]
) -> None:
    """A constant prediction has no correlation with the labels, whatever their shares are."""
    write_sweep(tmp_path, make_config(tasks={task: None}))
    for place, label in enumerate(("softmax", "sharp")):
        for seed in range(3):
            add(tmp_path, label, "final", seed, predict(9 * place + seed), LABELS, task=task)
    report(tmp_path)
    line = read_csv(tmp_path)[task, "sharp"]
    assert float(line["low"]) <= float(line["difference"]) <= float(line["high"])
    assert majority(read_sweep(tmp_path), task) == constant
    assert "paper" not in line


def test_the_first_of_several_splits_is_the_score(tmp_path: Path) -> None:
    write_sweep(tmp_path, make_config(tasks={"MNLI": None}))
    for label in ("softmax", "sharp"):
        record = add(tmp_path, label, "final", 0, LABELS, LABELS, task="MNLI")
        assert record.results is not None
        first = record.results["predictions"]["dev_matched"]
        more = {
            "predictions": {"dev_matched": first, "dev_mismatched": first | {"labels": [2] * 150}},
            "metrics": {"dev_matched/accuracy": 1.0, "dev_mismatched/accuracy": 0.25},
            "per_epoch": [{"epoch": 1.0, "dev_matched/accuracy": 0.9}],
        }
        add(tmp_path, label, "final", 0, LABELS, LABELS, task="MNLI", **more)
    report(tmp_path)
    assert float(read_csv(tmp_path)["MNLI", "sharp"]["mean"]) == 1
    assert "dev_mismatched/accuracy 25.00" in pages(tmp_path)[0]


def seconds_of(folder: Path) -> tuple[float, float]:
    """Training time of the mapping, and relative to softmax."""
    report(folder)
    line = read_csv(folder)["RTE", "sharp"]
    return float(line["train_seconds"]), float(line["seconds_ratio"])


def test_time_is_that_of_the_processor_only_on_one(tmp_path: Path) -> None:
    write_sweep(tmp_path, make_config())
    for label, wall, cpu in (("softmax", 20.0, 10.0), ("sharp", 60.0, 15.0)):
        seconds = {"train": wall, "train_cpu": cpu, "total": 99.0}
        add(tmp_path, label, "final", 0, LABELS, LABELS, seconds=seconds)
        add(tmp_path, label, "final", 1, LABELS, LABELS, seconds=seconds)
    assert seconds_of(tmp_path) == (15, 1.5)
    for label, wall in (("softmax", 20.0), ("sharp", 60.0)):
        for index in range(2):
            seconds = {"train": wall, "train_cpu": 1.0, "total": 99.0}
            more = {"device": "NVIDIA H200", "seconds": seconds}
            add(tmp_path, label, "final", index, LABELS, LABELS, **more)
    assert seconds_of(tmp_path) == (60, 3)
    add(tmp_path, "sharp", "final", 1, LABELS, LABELS, device="x86_64 CPU, 1 threads")
    report(tmp_path)
    assert read_csv(tmp_path)["RTE", "sharp"]["seconds_ratio"] == ""


def test_the_paper_protocol_takes_the_best_of_each_seed_and_says_what_that_is(
    tmp_path: Path,
) -> None:
    mappings = {
        "softmax": CandidateConfig("softmax"),
        "r": CandidateConfig("r-softmax", {"r": [0.1, 0.2]}, schedule=ramp("r")),
    }
    config = make_config(protocol="paper", mappings=mappings, seeds=2)
    write_sweep(tmp_path, config)
    for seed in range(2):
        add(tmp_path, "softmax", "grid", seed, guesses(LABELS, 0.8, 9), LABELS)
        for place, r in enumerate((0.1, 0.2)):
            # 0.2 is the best for seed 0, 0.1 for seed 1
            right = 0.95 if place != seed else 0.6
            predicted = guesses(LABELS, right, 10 + place)
            run = planned(tmp_path, "r", "grid", 2 * seed + place).config
            assert (run.train.seed, run.mapping.params) == (seed, {"r": r})
            add(tmp_path, "r", "grid", 2 * seed + place, predicted, LABELS)
    report(tmp_path)
    line = read_csv(tmp_path)["RTE", "r"]
    assert line["settings"] == "lr 0.0001, r 0.2 (seed 0); lr 0.0001, r 0.1 (seed 1)"
    assert line["runs"] == "2"
    for page in pages(tmp_path):
        assert "chosen on the dev set that it is reported on" in page
        assert "Incomplete" not in page
        assert "Expected best of 1" in page


@pytest.mark.parametrize(
    ("task", "name", "params", "expected"),
    [
        ("MRPC", "softmax", {}, 84.56),
        ("QQP", "r-softmax", {"r": [0.1, 0.2]}, 91.13),
        ("RTE", "mixed-sparsehourglass", {"mix": 1.0}, 52.71),
        ("SST-2", "entmax", {"alpha": 2.0}, 79.82),
        ("QNLI", "mixed-entmax", {"alpha": [2.0], "mix": 1.0}, 55.57),
        ("QNLI", "entmax", {"alpha": 1.5}, None),
        ("QNLI", "mixed-sparsemax", {"mix": 0.5}, None),
        ("CoLA", "softmax", {}, None),
        ("RTE", "sigsoftmax", {}, None),
    ],
)
def test_numbers_of_the_paper(
    task: str, name: str, params: dict[str, Any], expected: float | None
) -> None:
    candidate = CandidateConfig(name, params)
    assert published(task, candidate) == expected
    assert published(task, replace(candidate, layers=[0])) is None


def test_only_final_runs_of_the_chosen_setting_count(tmp_path: Path) -> None:
    write_sweep(tmp_path, make_config(learning_rates=[1e-4, 5e-4]))
    runs = [add(tmp_path, "sharp", "final", seed, LABELS, LABELS) for seed in range(3)]
    assert {run.config["train"]["learning_rate"] for run in runs} == {1e-4}
    assert list(read_sweep(tmp_path).scored(("RTE", "sharp")).values()) == runs
    # the choice is not made before every trial has come to an end
    add(tmp_path, "sharp", "trial", 1, status="failed")
    assert not read_sweep(tmp_path).scored(("RTE", "sharp"))
    # another setting is the best
    add(tmp_path, "sharp", "trial", 1, LABELS, LABELS, split="selection")
    new = add(tmp_path, "sharp", "final", 0, LABELS, LABELS)
    assert new.config["train"]["learning_rate"] == 5e-4
    assert read_sweep(tmp_path).scored(("RTE", "sharp")) == {0: new}
    # a diverged trial has come to an end, and the other one is the best again
    add(tmp_path, "sharp", "trial", 1, status="diverged")
    assert list(read_sweep(tmp_path).scored(("RTE", "sharp")).values()) == runs


def test_a_folder_without_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: no such folder; name the output_dir"):
        report(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    write_sweep(tmp_path, make_config())
    with pytest.raises(ValueError, match=f"{tmp_path}: no record.*sparse-attn glue sweep"):
        report(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match="is not readable"):
        report(tmp_path)
    (tmp_path / "sweep.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match="format 2, but this version reads format 1"):
        report(tmp_path)
    (tmp_path / "sweep.json").write_text('{"format": 1}')
    with pytest.raises(ValueError, match=r"is not of a sweep of this experiment .*model, mappings"):
        report(tmp_path)
    write_sweep(tmp_path, make_config())
    content = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**content, "seeds": 0}))
    with pytest.raises(ValueError, match=r"is not of a sweep of this experiment \(seeds=0"):
        report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("rates", "right", "by_chance"),
    [
        (2, (121, 120), True),
        (2, (120, 122), False),
        (2, (80, 90), True),  # 90 of the labels are the same
        (2, (80, 91), False),
        (1, (120, 120), False),  # nothing to choose
    ],
)
def test_settings_that_chance_chose_are_named(
    rates: int, right: tuple[int, int], by_chance: bool, tmp_path: Path
) -> None:
    fill(tmp_path, make_config(learning_rates=[1e-4, 2e-5][:rates]), {"softmax": 0.9})
    for index, count in enumerate(right):
        predicted = np.where(np.arange(len(LABELS)) < count, LABELS, 1 - LABELS)
        add(tmp_path, "sharp", "trial", index, predicted, LABELS, split="selection")
        ahead = np.where(np.arange(len(LABELS)) < 140 - 9 * index, LABELS, 1 - LABELS)
        add(tmp_path, "softmax", "trial", index, ahead, LABELS, split="selection")
    report(tmp_path)
    lines = read_csv(tmp_path)
    expected = "-" if rates == 1 else "yes" if by_chance else "no"
    assert lines["RTE", "sharp"]["by_chance"] == expected
    assert lines["RTE", "softmax"]["by_chance"] != "yes"


def test_tasks_and_rows_that_were_cut(tmp_path: Path) -> None:
    fill(tmp_path, make_config())
    report(tmp_path)
    row = "| RTE | accuracy | dev | 150 | 60.00 | 1,000 | 3 | 32 | 128 | fp32 |"
    assert f"{row} - |" in pages(tmp_path)[1]  # records before this was counted
    for mapping in ("softmax", "sharp"):
        for index in range(3):
            guessed = guesses(LABELS, 0.8, index)
            add(tmp_path, mapping, "final", index, guessed, LABELS, cut={"train": 12, "dev": 0})
    report(tmp_path)
    assert f"{row} train 12 |" in pages(tmp_path)[1]

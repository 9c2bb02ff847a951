"""The plots show what the records hold, and the page carries them itself."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glue.report import plots
from glue.report.runs import Sweep
from glue.sweep import CandidateConfig
from sparse_attn.engine.sweep.records import write_record
from sparse_attn.reports.bootstrap import expected_best
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

VALUES = (0.1, 0.2, 0.3)


class Reader(HTMLParser):
    """Tags that are not closed in their turn, and everything that would be loaded."""

    VOID = ("meta", "img", "link", "br", "hr", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_no_other_file(tmp_path: Path) -> None:
    fill(tmp_path, make_config())
    html = report(tmp_path).path.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in reader.loaded)
    assert not {"script", "link", "iframe", "object"} & set(reader.tags)
    assert "url(" not in html
    assert "@import" not in html
    for link in reader.loaded:
        if link.startswith("#"):
            assert f'id="{link[1:]}"' in html
        else:
            assert base64.b64decode(link.partition(",")[2]).startswith(b"\x89PNG")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three values of r tried, the second run with two seeds, softmax with one."""
    mappings = {
        "softmax": CandidateConfig("softmax"),
        "r": CandidateConfig("r-softmax", {"r": list(VALUES)}, schedule=ramp("r")),
    }
    write_sweep(tmp_path, make_config(mappings=mappings, trials=3))
    for k in range(len(VALUES)):
        r = planned(tmp_path, "r", "trial", k).config.mapping.params["r"]
        epochs = [{"epoch": e, "accuracy": r * e, "loss": 0.5, "sparsity": r} for e in (1.0, 2.0)]
        predicted = guesses(LABELS, 0.9 if r == 0.2 else 0.5 + r, k)
        more: Any = {"split": "selection", "per_epoch": epochs}
        add(tmp_path, "r", "trial", k, predicted, LABELS, **more)
    for seed in range(2):
        log = [{"step": 10, "loss": 0.7 + seed, "r": 0.1}, {"step": 20, "loss": 0.5, "r": 0.2}]
        heads = {"dev": {"mean": 0.5, "per_layer": [0.5], "per_head": [[0.25 + seed / 2, 0.5]]}}
        predicted = guesses(LABELS, 0.8, 7 + seed)
        more = {"log": log, "sparsity": heads}
        add(tmp_path, "r", "final", seed, predicted, LABELS, **more)
    add(tmp_path, "softmax", "final", 0, LABELS, LABELS)
    return tmp_path


def by_value(read: Sweep) -> dict[float, float]:
    """The trials' scores in percent by their r."""
    trials = read.searched("RTE", "r")
    assert len({record.score for record in trials}) == len(VALUES)
    found = {record.config["mapping"]["params"]["r"]: 100 * record.score for record in trials}
    return dict(sorted(found.items()))


def drawn(axes: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def test_every_seed_is_a_point(sweep: Path) -> None:
    read = read_sweep(sweep)
    figure = plots.scores(read, "RTE")
    assert figure is not None
    found = [100 * record.score for record in read.scored("RTE", "r").values()]
    assert len(found) == 2
    assert found in [x for x, _ in drawn(figure.axes[0])]
    assert [100.0] in [x for x, _ in drawn(figure.axes[0])]
    assert [60.0, 60.0] in [x for x, _ in drawn(figure.axes[0])]  # the most frequent class


def test_scores_stand_at_their_parameter(sweep: Path) -> None:
    read = read_sweep(sweep)
    figure = plots.parameters(read, "RTE")
    assert figure is not None
    x, y = drawn(figure.axes[0])[0]
    assert x == list(VALUES)
    assert y == pytest.approx(list(by_value(read).values()))


def test_budget_is_the_expected_best_of_the_trials(sweep: Path) -> None:
    read = read_sweep(sweep)
    figure = plots.budget(read, "RTE")
    assert figure is not None
    (_, base), (x, y) = drawn(figure.axes[0])
    assert len(set(base)) == 1  # softmax has three trials with one score
    assert x == [1, 2, 3]
    assert y == pytest.approx(expected_best([100 * r.score for r in read.searched("RTE", "r")]))


def test_learning_curves_carry_the_schedule(sweep: Path) -> None:
    figure = plots.learning(read_sweep(sweep), "RTE")
    assert figure is not None
    softmax, ours, schedule = figure.axes
    assert ([10, 20], [1.2, 0.5]) in drawn(ours)
    assert ([10, 20], [1.7, 0.5]) in drawn(ours)
    assert ([10, 20], [0.7, 0.5]) in drawn(ours)  # softmax, to compare with
    assert drawn(schedule) == [([10, 20], [0.1, 0.2])]
    assert schedule.get_ylabel() == "r"
    assert softmax.get_ylim() == ours.get_ylim()


def test_epochs_are_those_of_the_best_trial(sweep: Path) -> None:
    read = read_sweep(sweep)
    figure = plots.epochs(read, "RTE")
    assert figure is not None
    found = by_value(read)
    best = max(found, key=lambda r: found[r])
    ((x, y),) = drawn(figure.axes[0])
    assert x == [1, 2]
    assert y == pytest.approx([100 * best, 200 * best])


def test_zeros_are_the_mean_over_seeds(sweep: Path) -> None:
    figure = plots.zeros(read_sweep(sweep), "RTE")
    assert figure is not None
    assert np.asarray(figure.axes[0].images[0].get_array()).tolist() == [[50.0, 50.0]]
    assert figure.axes[0].get_title() == "r: 50 %"
    assert [
        axis.get_ticklocs().tolist() for axis in (figure.axes[0].yaxis, figure.axes[0].xaxis)
    ] == [
        [0],
        [0, 1],
    ]  # layers and heads count from 0


# one logged step is no curve
@pytest.mark.parametrize("log", [[], [{"step": 10, "loss": 0.5}]])
def test_a_plot_with_nothing_to_show_is_left_out(log: list[Any], tmp_path: Path) -> None:
    write_sweep(tmp_path, make_config(trials=1))
    add(tmp_path, "softmax", "final", 0, LABELS, LABELS, log=log)
    assert [plot.title for plot in plots.make_plots(read_sweep(tmp_path), "RTE")] == ["RTE: Scores"]


def test_records_without_a_log_have_no_learning_curves(tmp_path: Path) -> None:
    write_sweep(tmp_path, make_config(trials=1))
    record = add(tmp_path, "softmax", "final", 0, LABELS, LABELS)
    assert record.results
    del record.results["log"]
    write_record(tmp_path, record)
    assert [plot.title for plot in plots.make_plots(read_sweep(tmp_path), "RTE")] == ["RTE: Scores"]


def test_a_loss_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    write_sweep(tmp_path, make_config())
    log = [{"step": 10, "loss": 0.5}, {"step": 20, "loss": float("nan")}]
    add(tmp_path, "softmax", "final", 0, LABELS, LABELS, log=log)
    report(tmp_path)

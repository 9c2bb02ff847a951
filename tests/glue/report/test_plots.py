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
        predicted = guesses(LABELS, 0.9 if r == 0.2 else 0.5 + r, k)
        add(tmp_path, "r", "trial", k, predicted, LABELS, split="selection")
    for seed in range(2):
        heads = {"dev": {"mean": 0.5, "per_layer": [0.5], "per_head": [[0.25 + seed / 2, 0.5]]}}
        predicted = guesses(LABELS, 0.8, 7 + seed)
        add(tmp_path, "r", "final", seed, predicted, LABELS, sparsity=heads)
    add(tmp_path, "softmax", "final", 0, LABELS, LABELS)
    return tmp_path


def by_value(read: Sweep) -> dict[float, float]:
    """The trials' scores in percent by their r."""
    trials = read.searched(("RTE", "r"))
    assert len({record.score for record in trials}) == len(VALUES)
    found = {record.config["mapping"]["params"]["r"]: 100 * record.score for record in trials}
    return dict(sorted(found.items()))


def drawn(axes: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def test_scores_stand_at_their_parameter(sweep: Path) -> None:
    read = read_sweep(sweep)
    figure = plots.parameters(read, "RTE")
    assert figure is not None
    x, y = drawn(figure.axes[0])[0]
    assert x == list(VALUES)
    assert y == pytest.approx(list(by_value(read).values()))


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


def test_a_plot_with_nothing_to_show_is_left_out(tmp_path: Path) -> None:
    write_sweep(tmp_path, make_config(trials=1))
    add(tmp_path, "softmax", "final", 0, LABELS, LABELS)
    assert plots.make_plots(read_sweep(tmp_path), "RTE") == []

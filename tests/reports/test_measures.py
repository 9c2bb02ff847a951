"""Differences of measures against independent computation, and their verdicts."""

import numpy as np
import pytest
import scipy.stats

from sparse_attn.reports.measures import (
    Measure,
    Row,
    compare_cells,
    differences_table,
    forest_of,
    means_table,
)
from sparse_attn.reports.seed_statistics import Difference

ERROR = Measure("Error in %", lambda run: run.get("error"), -1, scale=100, note="On test.")
ERRORS = {
    ("a", "softmax"): [0.10, 0.12, 0.11],
    ("a", "entmax"): [0.20, 0.23, 0.20],
    ("a", "relu"): [0.11, 0.11, 0.12],
    ("b", "softmax"): [0.50, 0.40],
    ("b", "entmax"): [0.45],
    ("b", "relu"): [],
}
BASES = {cell: (cell[0], "softmax") for cell in ERRORS}


@pytest.fixture
def rows() -> dict[tuple[str, str], Row]:
    runs = {cell: {s: {"error": e} for s, e in enumerate(some)} for cell, some in ERRORS.items()}
    return {row.cell: row for row in compare_cells(ERROR, runs, BASES)}


def test_differences_are_those_of_scipy(rows: dict[tuple[str, str], Row]) -> None:
    p = []
    for mapping in ("entmax", "relu"):
        found = rows["a", mapping].difference
        test = scipy.stats.ttest_rel(ERRORS["a", mapping], ERRORS["a", "softmax"])
        ends = test.confidence_interval()
        assert found is not None
        assert found.interval == pytest.approx((ends.low, ends.high))
        assert found.p == pytest.approx(test.pvalue)
        p.append(test.pvalue)
    # of two p-values the smaller one counts twice
    assert rows["a", "entmax"].holm == pytest.approx(2 * p[0])
    assert rows["a", "relu"].holm == pytest.approx(p[1])
    record = rows["a", "entmax"].record()
    assert record["mean"] == pytest.approx(np.mean(ERRORS["a", "entmax"]))
    assert record["sd"] == pytest.approx(np.std(ERRORS["a", "entmax"], ddof=1))


def test_tables(rows: dict[tuple[str, str], Row]) -> None:
    made = list(rows.values())
    means = means_table(made)
    assert means.headers == ["Task", "softmax", "entmax", "relu"]
    assert means.rows == [
        ["a", "11.00 ± 1.00", "21.00 ± 1.73", "11.33 ± 0.58"],
        ["b", "45.00 ± 7.07", "45.00", "n/a"],
    ]
    table = differences_table(made, "softmax", {"Runs": lambda cell: str(len(ERRORS[cell]))})
    assert table.headers[:5] == ["Task", "Mapping", "Runs", "Mean ± sd", "Difference"]
    found = {(row[0], row[1]): row[2:] for row in table.rows}
    assert found["a", "softmax"] == ["3", "11.00 ± 1.00", *["-"] * 6]
    assert found["a", "entmax"][2:4] == ["+10.00", "[+7.52, +12.48]"]
    assert found["a", "entmax"][-2] == "worse"
    assert found["a", "relu"][-2] == "not significant"
    assert found["b", "entmax"] == ["1", "45.00", "-5.00", *["n/a"] * 3, "not judged", "n/a"]
    assert found["b", "relu"] == ["0", *["n/a"] * 5, "not judged", "n/a"]
    one = [row for row in made if row.cell[0] == "a"]
    assert differences_table(one, "softmax").headers[0] == "Mapping"
    figure = forest_of(made, "softmax")
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    marks = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert marks == pytest.approx([10, 1 / 3])  # in %, as the tables


@pytest.mark.parametrize(
    ("value", "better", "holm", "verdict"),
    [
        (0.05, 1, 0.04, "better"),
        (0.05, -1, 0.04, "worse"),
        (-0.05, 1, 0.04, "worse"),
        (-0.05, 1, 0.2, "not significant"),
        (-0.02, 1, 0.04, "not significant"),
        (-0.05, 1, None, "not judged"),
    ],
)
def test_the_verdict_needs_the_interval_and_the_corrected_p(
    value: float, better: int, holm: float | None, verdict: str
) -> None:
    measure = Measure("score", lambda run: run["score"], better)
    made = Difference(value, (value - 0.03, value + 0.03), 3, 0.01)
    assert Row(("a", "entmax"), measure, {}, True, made, holm).verdict == verdict

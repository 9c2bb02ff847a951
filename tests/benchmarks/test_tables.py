"""The cells and tables that all pages share."""

import pytest

from benchmarks.heads import Heads
from benchmarks.tables import cell, short, spread, table


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, ""),
        (0.012345, "0.0123"),
        (1.0, "1"),
        (99.87, "99.9"),
        (100.4, "100"),
        (1234.5, "1234"),
    ],
)
def test_short(value, cell):
    assert short(value) == cell


def test_spread():
    assert spread(None) == ""
    assert spread({"median": 2.0, "q1": 1.5, "q3": 1234.5}) == "2 (1.5-1234)"


def test_cell():
    case = {"vocab": 1000, "mib": 0.1234, "rows": [{"name": "a", "ms": dict.fromkeys(
        ("median", "q1", "q3"), 2.0), "to": {"b": None}}]}  # fmt: skip
    paths = [("vocab",), ("mib",), ("a", "ms"), ("a", "to", "b"), ("nobody", "ms")]
    assert [cell(case, *path) for path in paths] == ["1,000", "0.123", "2 (2-2)", "", ""]


def test_table():
    lines = table(["a", "b", "c"], [["x", "", "1"]], text=2)
    assert lines == ["| a | b | c |", "| --- | --- | --: |", "| x |  | 1 |"]


def test_section_of_a_case():
    def row(name, ms, peak, beyond, **to):
        ratios = {who: {"median": r, "q1": r - 0.1, "q3": r + 0.1, "n": 5} for who, r in to.items()}
        return {"name": name, "mapping": "plain" if name == "plain" else "softmax",
                "ours": name == "ours", "pass": "step", "cache": "", "reason": None,
                "ms": {"median": ms, "q1": ms, "q3": ms, "n": 5}, "to": ratios,
                "memory_mib": peak, "beyond_gradients_mib": beyond,
                "gradient_difference": 2e-7}  # fmt: skip

    rows = [
        row("plain", 200.0, 400.0, 300.0, plain=1.0),
        row("ours", 150.0, 160.0, 60.0, plain=0.75, Apple=1.5),
        row("Apple", 100.0, 200.0, 100.0, plain=0.5),
        {**row("Liger", 0, 0, 0), "reason": "out of memory"},
    ]
    case = {"group": "softmax", "name": "10k", "title": "2,048 tokens", "rows": rows}
    lines = Heads().section(case)
    ours = "| ours | 150 (150-150) | 0.75 (0.65-0.85) | 5 | 160 | 0.4 | 60 | 0.2 | 2.0e-07 |"
    assert lines[:3] == ["## softmax: 10k", "", "2,048 tokens (p = softmax(W h + b))."]
    assert ours in lines
    assert "| ours | Apple | step | 1.5 (1.4-1.6) |" in lines
    assert not any("ours / Liger" in line for line in lines)
    assert lines[-1] == "- Liger (step): out of memory"

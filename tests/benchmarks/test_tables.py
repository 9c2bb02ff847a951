"""The cells that the tables of all records share."""

import pytest

from benchmarks import glue_tables
from benchmarks.report import numbers
from benchmarks.tables import line, short, spread
from benchmarks.timing import Summary


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


def test_numbers_keep_five_digits():
    assert numbers(None) is None
    summary = Summary(median=1.2345678, q1=0.5, q3=123456.0, n=7)
    assert numbers(summary) == {"median": 1.2346, "q1": 0.5, "q3": 123460.0, "n": 7}


def test_line():
    assert line(["a", "", "b"]) == "| a |  | b |"


def test_thousands_of_examples_per_second():
    rate = {"median": 1234.0, "q1": 1000.0, "q3": 2345.0, "n": 3}
    where = {
        "device": "CPU",
        "cuda": None,
        "cpu": "a CPU",
        "threads": 1,
        "started": "",
        "commit": "",
    }
    where["versions"] = {"torch": "2", "transformers": "5"}
    row = {"name": "recipe", "examples_per_second": rate, "to_recipe": rate, "padded_length": 9.5}
    settings = {"batch_size": 8}
    found = {"settings": settings, "environment": where, "steps": 5, "rows": [row]}
    page = glue_tables.markdown({"throughput": found})
    assert "| recipe | 1234 (1000-2345) | 1234 (1000-2345) | 9.5 | 3 |" in page

"""Tables of verdicts, by hand."""

from sparse_attn.reports.seed_statistics import Difference
from sparse_attn.reports.verdicts import Measured, verdict_tables

UP = Difference(2.0, (1.0, 3.0), 3, detectable=0.5)
DOWN = Difference(-2.0, (-3.0, -1.0), 3, detectable=1.5)
EVEN = Difference(0.0, (-1.0, 1.0), 5)
ALONE = Difference(9.0, None, 1)


def measured(name: str, better: int, *pairs: Difference | None) -> Measured:
    """Of entmax on the tasks a, b and c, and of a control on a."""
    cells = [("a", "entmax"), ("b", "entmax"), ("c", "entmax"), ("a", "control")]
    return Measured(name, "points", "{:.1f}", better, dict(zip(cells, pairs, strict=True)))


def test_verdicts_by_measure_by_mapping_and_where_they_disagree() -> None:
    found = [measured("F1", 1, UP, EVEN, DOWN, UP), measured("loss", -1, UP, UP, None, ALONE)]
    by_measure, by_mapping, disagreeing = verdict_tables(found, "softmax", ["control"])
    assert by_measure.caption.startswith("Differences from softmax, without control. Each by")
    assert by_measure.rows == [
        ["F1", "points", "3", "1", "1", "1", "3, 5", "1.0", "1.5"],
        ["loss", "points", "2", "0", "2", "0", "3", "0.5", "0.5"],
    ]
    assert by_mapping.rows == [
        ["entmax", "1 / 1 / 1", "0 / 2 / 0"],
        ["control", "1 / 0 / 0", "0 / 0 / 0"],
    ]
    assert disagreeing.rows == [["entmax", "better", "worse", "a"]]


def test_no_table_without_rows() -> None:
    even = verdict_tables([measured("F1", 1, EVEN, None, ALONE, None)], "softmax")
    assert [table.rows for table in even] == [
        [["F1", "points", "1", "0", "0", "1", "5", "-", "-"]],
        [["entmax", "0 / 0 / 1"]],
    ]
    assert verdict_tables([measured("F1", 1, ALONE, None, None, None)], "softmax") == []

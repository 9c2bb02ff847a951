"""Tables of a report: numbers are aligned and stay on one line."""

from sparse_attn.reports.table import Table, markdown
from sparse_attn.reports.text import unbroken


def test_numbers_are_aligned_right() -> None:
    rows = [["1", "75.1 ± 0.9", "[-1.00, +2.00]", "lr 0.1", "-"], ["2", "n/a", "-", "-", "< 0.001"]]
    table = Table("", ["row", "score", "interval", "setting", "p"], rows)
    assert table.numeric == [False, True, True, False, True]
    assert markdown(table)[1] == "| --- | ---: | ---: | --- | ---: |"


def test_numbers_stay_on_one_line() -> None:
    words = "a, b: 75.1 ± 0.9, by -1.00 [-2.00, +0.50], 3 seeds"
    kept = "a, b: 75.1_±_0.9, by -1.00 [-2.00,_+0.50], 3 seeds"
    assert unbroken(words) == kept.replace("_", "\N{NO-BREAK SPACE}")

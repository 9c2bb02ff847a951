"""Spreads over seeds and paired differences, against SciPy."""

import math

import pytest
import scipy.stats

from pipeline.report.spread import (
    Difference,
    Estimate,
    estimate,
    holm,
    paired,
    paired_p,
    reach,
    verdict,
)

OURS = {0: 3.0, 1: 5.5, 2: 4.0, 7: 9.0}
THEIRS = {0: 2.5, 1: 4.0, 2: 4.5, 3: 1.0}


def test_estimate() -> None:
    found = estimate([1.0, 2.0, 4.0])
    assert found == Estimate(pytest.approx(7 / 3), pytest.approx(math.sqrt(7 / 3)), 3)
    assert found.text("{:.2f}") == "2.33 ± 1.53"
    assert estimate([2.0]) == Estimate(2.0, None, 1)
    assert Estimate(2.0, None, 1).text("{:.1f}") == "2.0"
    assert estimate([1.0, math.inf]) == Estimate(math.inf, None, 2)
    assert estimate([]) is None


def test_paired_interval_is_that_of_the_t_test() -> None:
    found = paired(OURS, THEIRS)
    test = scipy.stats.ttest_rel([3.0, 5.5, 4.0], [2.5, 4.0, 4.5])
    low, high = test.confidence_interval(0.95)
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert found.interval == pytest.approx((low, high))
    assert (found.n, found.p) == (3, pytest.approx(test.pvalue))


def test_paired_without_an_interval() -> None:
    assert paired({0: 1.5}, {0: 1.0}) == Difference(0.5, None, 1)
    assert paired({0: 1.5}, {1: 1.0}) is None
    assert paired({0: math.inf, 1: 1.0}, {0: 1.0, 1: 1.0}) is None


def test_difference_as_text() -> None:
    assert Difference(0.5, (-0.25, 1.25), 3).text("{:+.2f}") == "+0.50 [-0.25, +1.25]"
    assert Difference(-0.001, None, 1).text("{:+.2f}") == "+0.00 (no interval)"


def test_paired_p_needs_spread() -> None:
    assert paired_p([0.1]) == 0
    assert paired_p([0.1, 0.1, 0.1]) == 0
    assert paired_p([-0.1, 0.1]) == 1


def test_holm_by_hand() -> None:
    # 0.01 x 3; 0.02 x 2; 0.03 x 1, but not below the one before
    assert holm([0.02, None, 0.01, 0.03]) == [0.04, None, pytest.approx(0.03), 0.04]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None]) == [None]


def test_side_of_an_interval() -> None:
    intervals = [(0.1, 0.5), (-0.5, -0.1), (-0.1, 0.5), None]
    assert [Difference(0.2, interval, 3).side for interval in intervals] == [1, -1, 0, 0]


def test_a_verdict_says_what_differs_and_what_would_have_shown() -> None:
    found = {
        "a": Difference(-1.0, (-1.5, -0.5), 3),
        "b": Difference(2.0, (1.0, 3.0), 5),
        "c": Difference(0.0, (-0.25, 0.25), 3),
        "d": Difference(9.0, None, 1),
    }
    assert verdict(found, "softmax", "{:+.1f}", "points", better=-1) == (
        "Better than softmax: a -1.0 [-1.5, -0.5]. Worse than softmax: b +2.0 [+1.0, +3.0]. No "
        "difference shown from softmax: c +0.0 [-0.2, +0.2]. One pair of runs, which settles "
        "nothing: d. With 3 and 5 pairs of seeds the intervals reach 0.5 points in the median, 1.0 "
        "at most, to each side: smaller differences would hardly show."
    )
    better = verdict({"b": found["b"]}, "softmax", "{:+.1f}", "points", better=1)
    assert better.startswith("Better than softmax: b +2.0")
    assert "reach 1.0 points to each side" in better
    assert reach([found["d"]], "{:.1f}", "points") == []

"""Spreads over seeds and paired differences, against SciPy."""

import math

import numpy as np
import pytest
import scipy.stats

from sparse_attn.reports.seed_statistics import (
    Difference,
    Estimate,
    detectable_effect,
    estimate,
    holm,
    paired,
    paired_p,
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
    assert found.detectable == detectable_effect([0.5, 1.5, -0.5])


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


@pytest.mark.parametrize(
    ("values", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.2, 0.2, 0.001], [0.4, 0.4, 0.003]),
        ([0.0, 1.0, 0.02, 0.02], [0.0, 1.0, 0.06, 0.06]),
    ],
)
def test_holm_is_that_of_statsmodels(values: list[float], corrected: list[float]) -> None:
    """multipletests(values, method="holm") of statsmodels 0.15."""
    assert holm(values) == pytest.approx(corrected, rel=1e-12)


@pytest.mark.parametrize(
    ("pairs", "effect"),
    [
        (2, 11.549889754978167),
        (3, 3.264043552819638),
        (5, 1.6819970833232674),
        (10, 0.9960019107624178),
        (30, 0.5292357045238948),
        (1000, 0.08868101827724957),
    ],
)
def test_detectable_effect_is_that_of_statsmodels(pairs: int, effect: float) -> None:
    """TTestPower().solve_power(nobs=pairs, alpha=0.05, power=0.8) of statsmodels 0.15.

    Its solver stops at a power within 2e-5 of 0.8; ours is exact, see the next test.
    """
    differences = np.random.default_rng(pairs).normal(0, 1, pairs)
    expected = effect * differences.std(ddof=1)
    assert detectable_effect(differences.tolist()) == pytest.approx(expected, rel=3e-5)


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_detectable_effect_has_the_power_it_claims(seeds: int) -> None:
    differences = np.random.default_rng(seeds).normal(0, 1, seeds)
    found = detectable_effect(differences)
    assert found is not None
    shift = found / differences.std(ddof=1) * np.sqrt(seeds)
    limit = scipy.stats.t.ppf(0.975, seeds - 1)
    beyond = scipy.stats.nct(seeds - 1, shift)
    assert beyond.sf(limit) + beyond.cdf(-limit) == pytest.approx(0.8, abs=1e-12)


def test_detectable_effect_needs_spread() -> None:
    assert detectable_effect([0.1]) is None
    assert detectable_effect([0.1, 0.1]) is None


def test_side_of_an_interval() -> None:
    intervals = [(0.1, 0.5), (-0.5, -0.1), (-0.1, 0.5), None]
    assert [Difference(0.2, interval, 3).side for interval in intervals] == [1, -1, 0, 0]


def test_a_verdict_needs_the_interval_and_the_corrected_p() -> None:
    above = Difference(0.2, (0.1, 0.5), 3, p=0.01)
    assert [above.verdict(side) for side in (1, -1)] == ["better", "worse"]
    assert [above.verdict(1, p) for p in (0.049, 0.05)] == ["better", "not significant"]
    assert Difference(0.2, (-0.1, 0.5), 3).verdict(1) == "not significant"
    assert Difference(-0.2, (-0.5, -0.1), 3).verdict(-1, 0.01) == "better"
    assert Difference(0.2, None, 1).verdict(1) == "not judged"

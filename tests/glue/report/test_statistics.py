"""Statistics against answers known, and against other ways to the same numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats

from sparse_attn.evaluation.metric import METRICS
from sparse_attn.reports import bootstrap
from tests.glue.report.make_sweep import guesses

SEEDS, EXAMPLES = 4, 300


@pytest.fixture
def labels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, EXAMPLES)


def runs(labels: np.ndarray, right: float, first: int) -> np.ndarray:
    return np.stack([guesses(labels, right, first + seed) for seed in range(SEEDS)])


def test_a_large_difference_is_found_and_covered(labels: np.ndarray) -> None:
    found = bootstrap.compare("accuracy", labels, runs(labels, 0.85, 10), runs(labels, 0.7, 20))
    assert found.n == SEEDS
    assert 0 < found.low < 0.15 < found.high < 0.3
    assert found.low < found.value < found.high
    # as small as four pairs of runs can make it
    assert found.p < 0.01
    down = bootstrap.compare("accuracy", labels, runs(labels, 0.7, 20), runs(labels, 0.85, 10))
    assert (down.value, down.p) == (-found.value, found.p)
    assert down.high < 0


def test_no_difference_is_not_found(labels: np.ndarray) -> None:
    p = [
        bootstrap.compare(
            "accuracy", labels, runs(labels, 0.8, 100 * k), runs(labels, 0.8, 100 * k + 50), 499
        ).p
        for k in range(1, 21)
    ]
    assert sum(value < 0.05 for value in p) <= 4
    assert np.median(p) > 0.2


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews_correlation", "spearmanr"])
def test_the_same_predictions_differ_by_nothing(labels: np.ndarray, metric: str) -> None:
    same = runs(labels, 0.8, 1)
    found = bootstrap.compare(metric, labels, same, same, 99)
    assert (found.value, found.low, found.high, found.p) == (0, 0, 0, 1)
    assert found.detectable is None


@pytest.mark.parametrize("metric", ["accuracy", "matthews_correlation", "pearson"])
def test_interval_agrees_with_a_crossed_bootstrap_in_numpy(
    labels: np.ndarray, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "paired", lambda ours, theirs: None)  # the bootstrap alone
    ours, base = runs(labels, 0.8, 1), runs(labels, 0.75, 30)
    found = bootstrap.compare(metric, labels, ours, base, 999)
    rng = np.random.default_rng(3)
    drawn = []
    for _ in range(999):
        seeds = rng.integers(0, SEEDS, SEEDS)
        rows = rng.integers(0, EXAMPLES, EXAMPLES)
        picked = labels[rows]
        values = [_score(metric, picked, side[s][rows]) for side in (ours, base) for s in seeds]
        drawn.append(np.mean(values[:SEEDS]) - np.mean(values[SEEDS:]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    # three standard errors of the difference of two such percentiles
    chance = 0.09 * (high - low)
    assert found.low == pytest.approx(low, abs=chance)
    assert found.high == pytest.approx(high, abs=chance)
    tail = min(np.mean(np.array(drawn) <= 0), np.mean(np.array(drawn) >= 0))
    p = bootstrap.p_value(np.array(drawn))
    assert p == pytest.approx(2 * tail, abs=0.01)
    everything = [[_score(metric, labels, run) for run in side] for side in (ours, base)]
    # the part of compare's p that is the bootstrap's
    assert p > scipy.stats.ttest_rel(*everything).pvalue
    assert found.p == pytest.approx(p, abs=0.04)


def _score(metric: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    if metric == "accuracy":
        return float(np.mean(labels == predicted))
    return float(np.corrcoef(labels, predicted)[0, 1])


@pytest.mark.parametrize(
    ("right", "first", "other", "place"), [(0.85, 10, 0.7, 20), (0.8, 1, 0.78, 30)]
)
def test_neither_p_nor_interval_is_surer_than_a_paired_t_test(
    labels: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    right: float,
    first: int,
    other: float,
    place: int,
) -> None:
    ours, base = runs(labels, right, first), runs(labels, other, place)
    found = bootstrap.compare("accuracy", labels, ours, base, 999)
    test = scipy.stats.ttest_rel((ours == labels).mean(1), (base == labels).mean(1))
    assert found.p == pytest.approx(test.pvalue, rel=1e-6)
    ends = test.confidence_interval()
    assert found.low <= ends.low + 1e-12
    assert found.high >= ends.high - 1e-12
    monkeypatch.setattr(bootstrap, "paired", lambda ours, theirs: None)
    alone = bootstrap.compare("accuracy", labels, ours, base, 999)
    assert alone.p < test.pvalue
    assert found.interval == pytest.approx((min(alone.low, ends.low), max(alone.high, ends.high)))


@pytest.mark.slow
def test_few_seeds_raise_no_false_alarm() -> None:
    """Seeds that differ by 2 points, and no difference: the bootstrap alone finds one in a tenth.

    The bound is 5 % and what the chance of 300 simulations may add.
    """
    rng = np.random.default_rng(0)
    labels = np.ones(2000, dtype=int)
    alarms = 0
    for _ in range(300):
        luck = rng.random((6, len(labels)))
        luck[:, ::2] = luck[0, ::2]  # half of the rows are as hard for one run as for the others
        predicted = (luck < rng.normal(0.8, 0.02, (6, 1))).astype(int)
        alarms += bootstrap.compare("accuracy", labels, predicted[:3], predicted[3:], 99).p < 0.05
    assert 0 < alarms <= 0.07 * 300


def test_seeds_count_as_a_source_of_chance(
    labels: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    # every example is wrong in one run and right in another: only the seeds vary
    ours = np.stack([labels, labels, 1 - labels, 1 - labels])
    base = np.stack([labels, 1 - labels, labels, 1 - labels])
    found = bootstrap.compare("accuracy", labels, ours, base, 999)
    assert found.value == 0
    # the differences of the four pairs are 0, 1, -1 and 0
    half = scipy.stats.t.ppf(0.975, 3) * np.sqrt(2 / 3) / 2
    assert found.interval == pytest.approx((-half, half))
    monkeypatch.setattr(bootstrap, "paired", lambda ours, theirs: None)
    assert bootstrap.compare("accuracy", labels, ours, base, 999).interval == (-0.75, 0.75)


def test_one_seed_draws_examples_alone(labels: np.ndarray) -> None:
    ours, base = runs(labels, 0.8, 1)[:1], runs(labels, 0.7, 9)[:1]
    found = bootstrap.compare("accuracy", labels, ours, base, 1999)
    gained = (ours == labels)[0] * 1.0 - (base == labels)[0]
    error = gained.std() / np.sqrt(EXAMPLES)
    assert found.n == 1
    assert found.detectable is None
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_means_of_values() -> None:
    rng = np.random.default_rng(0)
    ours, base = rng.normal(0.3, 1, (1, 400)), rng.normal(0, 1, (1, 400))
    found = bootstrap.compare_means(ours, base, 1999)
    gained = (ours - base)[0]
    half = 1.96 * gained.std() / np.sqrt(400)
    assert found.value == pytest.approx(gained.mean())
    assert (found.low, found.high) == pytest.approx(
        (gained.mean() - half, gained.mean() + half), abs=0.1 * half
    )
    right, wrong = np.ones((1, 3)), np.zeros((1, 3))
    assert bootstrap.compare_means(right, wrong, 99).value == 1


def test_one_example_tells_nothing() -> None:
    found = bootstrap.compare("accuracy", np.ones(1), np.ones((2, 1)), np.zeros((2, 1)))
    assert (found.value, found.p) == (1, 1)


def weighted(metric: str, counts: np.ndarray, labels: np.ndarray, side: np.ndarray) -> float:
    return float(bootstrap.weighted_metric(metric, labels)(counts[None], labels, side[None])[0, 0])


@pytest.mark.parametrize("metric", ["f1", "matthews_correlation", "pearson", "spearmanr"])
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_weighted_metrics_are_those_of_the_tasks(
    labels: np.ndarray, metric: str, right: float
) -> None:
    constant = np.zeros_like(labels)
    counts = np.random.default_rng(0).multinomial(EXAMPLES, np.full(EXAMPLES, 1 / EXAMPLES))
    for references in (labels, constant):
        for predicted in (guesses(references, right, 1), constant, constant + 1):
            repeated = references.repeat(counts), predicted.repeat(counts)
            found = weighted(metric, counts, references, predicted)
            assert found == pytest.approx(METRICS[metric](*repeated), abs=1e-12)


@pytest.mark.parametrize("metric", ["pearson", "spearmanr"])
def test_weighted_correlations_of_scores(metric: str) -> None:
    rng = np.random.default_rng(0)
    scores, counts = rng.integers(0, 9, 50) / 4, rng.multinomial(50, np.full(50, 1 / 50))
    for predicted in (rng.normal(3, 1e-4, 50), rng.integers(-4, 4, 50), 1e6 - scores):
        expected = METRICS[metric](scores.repeat(counts), predicted.repeat(counts))
        assert weighted(metric, counts, scores, predicted) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", ["pearson", "spearmanr"])
def test_a_sample_that_is_constant_but_for_rounding_does_not_correlate(metric: str) -> None:
    scores, even = np.random.default_rng(0).normal(size=30), np.full(30, 0.1)
    assert (even - even.mean()).any()
    one = np.eye(30, dtype=int)[7] * 30
    assert weighted(metric, np.ones(30), scores, even) == 0.0
    assert weighted(metric, np.ones(30), even, scores) == 0.0
    assert weighted(metric, one, scores, 2 * scores) == 0.0
    assert weighted(metric, np.ones(30), scores, 2 * scores) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.slow
def test_spearman_of_scores_with_ties() -> None:
    rng = np.random.default_rng(0)
    scores, ours, base = rng.integers(0, 9, 50) / 4, rng.normal(size=50), rng.integers(-4, 4, 50)
    found = bootstrap.compare("spearmanr", scores, ours[None], base[None], 1999)
    rho = [scipy.stats.spearmanr(scores, side).statistic for side in (ours, base)]
    assert found.value == pytest.approx(rho[0] - rho[1], abs=1e-12)
    drawn = []
    for _ in range(1999):
        rows = rng.integers(0, 50, 50)
        picked = [
            scipy.stats.spearmanr(scores[rows], side[rows]).statistic for side in (ours, base)
        ]
        drawn.append(picked[0] - picked[1])
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_three_classes_keep_the_general_formula() -> None:
    three, predicted = np.array([0, 1, 2, 2]), np.array([0, 2, 2, 1])
    counts = np.array([2, 1, 0, 3])
    expected = METRICS["matthews_correlation"](three.repeat(counts), predicted.repeat(counts))
    assert weighted("matthews_correlation", counts, three, predicted) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("distribution", "p"),
    [
        ([1, 2, 3, 4], 2 * 1 / 5),
        ([-1, 2, 3, 4], 2 * 2 / 5),
        ([-1, -2, 3, 4], 1.0),
        ([1e-17, -1e-17, 0, 0], 1.0),
    ],
)
def test_p_value_by_hand(distribution: list[float], p: float) -> None:
    assert bootstrap.p_value(np.array(distribution)) == pytest.approx(p)


def test_expected_best_agrees_with_every_draw() -> None:
    scores = [0.3, 0.9, 0.5, 0.5]
    for k, value in enumerate(bootstrap.expected_best(scores), start=1):
        draws = [max(draw) for draw in itertools.product(scores, repeat=k)]
        assert value == pytest.approx(np.mean(draws), abs=1e-12)

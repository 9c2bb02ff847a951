"""Statistics of differences: intervals, p-values and expected best scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.stats

from glue.metric import METRICS
from pipeline.report.spread import LEVEL, Difference, paired

RESAMPLES = 9999
_SEED = 20240229
# indices per batch of resamples: 9999 resamples of a large dev set would exhaust memory
_BATCH = 2**22

Metric = Callable[[np.ndarray, np.ndarray], float]


def compare(
    metric: str | Metric,
    labels: np.ndarray,
    mapping: np.ndarray,
    baseline: np.ndarray,
    resamples: int | None = None,
) -> Difference:
    """d* = mean over seeds s* of metric(mapping[s*, e*]) - metric(baseline[s*, e*]).

    The crossed bootstrap: seeds s* and examples e* are resampled independently with replacement,
    jointly for both mappings. The interval is the percentile interval (Efron & Tibshirani 1993,
    ch. 13), and p = min(1, 2 (1 + min(#{d* <= 0}, #{d* >= 0})) / (B + 1)), with the 1 of Davison
    & Hinkley 1997, eq. 4.11. A bootstrap of few seeds is too sure, so that each end is that of the
    paired t interval over seeds where it lies further out, and p that of the t-test where it is
    larger. With one seed, only examples are resampled.

    The difference is a share, not in percent; `n` is the number of seeds.

    Args:
        metric: a name in `glue.metric.METRICS`, or a function of labels and predictions.
        labels: (examples,)
        mapping, baseline: (seeds, examples), predictions; row i of both has the same seed.
        resamples: B, RESAMPLES by default.
    """
    return _difference(_statistic(metric, labels, mapping, baseline), mapping.shape, resamples)


def compare_means(
    mapping: np.ndarray, baseline: np.ndarray, resamples: int | None = None
) -> Difference:
    """As `compare`, of the means of a value (seeds, examples) that each example has."""
    return _difference(_mean_of(mapping - baseline), mapping.shape, resamples)


def _difference(
    statistic: Callable[[np.ndarray, np.ndarray], float],
    shape: tuple[int, ...],
    resamples: int | None,
) -> Difference:
    seeds, examples = shape
    everything = np.arange(seeds), np.arange(examples)
    value = statistic(*everything)
    if examples < 2:
        return Difference(value, (value, value), seeds, 1.0)
    per_seed = {seed: statistic(np.array([seed]), everything[1]) for seed in range(seeds)}
    over_seeds = paired(per_seed, dict.fromkeys(per_seed, 0.0))
    one_seed = seeds < 2
    result = scipy.stats.bootstrap(
        everything[1:] if one_seed else everything,
        (lambda rows: statistic(everything[0], rows)) if one_seed else statistic,
        n_resamples=RESAMPLES if resamples is None else resamples,
        batch=max(1, _BATCH // (seeds + examples)),
        paired=False,
        vectorized=False,
        confidence_level=1 - LEVEL,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    low, high = map(float, result.confidence_interval)
    p = p_value(result.bootstrap_distribution)
    if over_seeds is None or over_seeds.p is None:
        return Difference(value, (low, high), seeds, p)
    ends = min(low, over_seeds.low), max(high, over_seeds.high)
    return Difference(value, ends, seeds, max(p, over_seeds.p), over_seeds.detectable)


def p_value(distribution: np.ndarray) -> float:
    """min(1, 2 (1 + min(#{d <= 0}, #{d >= 0})) / (B + 1)) over the B values d."""
    # a difference of 0 may be computed as 1e-17
    values = np.round(distribution, 12)
    tail = min(int((values <= 0).sum()), int((values >= 0).sum()))
    return min(1.0, 2 * (1 + tail) / (len(values) + 1))


def _statistic(
    metric: str | Metric, labels: np.ndarray, mapping: np.ndarray, baseline: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], float]:
    if metric == "accuracy":
        # integers are exact, and one gather per resample suffices
        return _mean_of((mapping == labels).astype(np.int32) - (baseline == labels))
    if metric == "spearmanr":
        labels, mapping, baseline = map(_codes, (labels, mapping, baseline))
    function = quick_metric(metric, labels) if isinstance(metric, str) else metric

    def statistic(seeds: np.ndarray, rows: np.ndarray) -> float:
        references = labels[rows]
        total = 0.0
        for seed, times in zip(*np.unique(seeds, return_counts=True), strict=True):
            ours = function(references, mapping[seed, rows])
            total += times * (ours - function(references, baseline[seed, rows]))
        return float(total / len(seeds))

    return statistic


def _mean_of(gained: np.ndarray) -> Callable[[np.ndarray, np.ndarray], float]:
    return lambda seeds, rows: float(gained[seeds].sum(0)[rows].sum() / (len(seeds) * len(rows)))


def quick_metric(metric: str, labels: np.ndarray) -> Metric:
    """The function of METRICS or an equivalent, ten times as fast; Spearman's takes `_codes`."""
    if metric == "matthews_correlation" and set(np.unique(labels)) <= {0, 1}:
        # for two classes it equals Pearson's correlation
        return _pearson
    quick = {"f1": _f1, "pearson": _pearson, "spearmanr": _spearman}
    return quick.get(metric, METRICS[metric])


def _pearson(references: np.ndarray, predictions: np.ndarray) -> float:
    """0 where either is constant."""
    if np.ptp(references) == 0 or np.ptp(predictions) == 0:
        return 0.0  # their mean may be rounded, and what is left of them would correlate
    return _cosine(references - references.mean(), predictions - predictions.mean())


def _spearman(references: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson's correlation of the ranks of `_codes`; 0 where either is constant."""
    return _cosine(_ranks(references), _ranks(predictions))


def _cosine(x: np.ndarray, y: np.ndarray) -> float:
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / norm if norm else 0.0


def _codes(values: np.ndarray) -> np.ndarray:
    """Integers from 0 in the order of the values, equal where they are."""
    return np.unique(values, return_inverse=True)[1].reshape(values.shape)


def _ranks(codes: np.ndarray) -> np.ndarray:
    """Centred ranks; equal codes share the mean of theirs."""
    counts = np.bincount(codes)
    return (counts.cumsum() - counts / 2 - len(codes) / 2)[codes]


def _f1(references: np.ndarray, predictions: np.ndarray) -> float:
    """2 TP / (#(reference = 1) + #(prediction = 1)); 0 if both are 0."""
    positive = int(references.sum() + predictions.sum())
    return 2 * int((references * predictions).sum()) / positive if positive else 0.0


def expected_best(scores: Sequence[float]) -> list[float]:
    """E[max of k draws] = sum_i x_(i) ((i / N)^k - ((i - 1) / N)^k), for k = 1..N.

    Draws with replacement from the N scores (Dodge et al. 2019, arXiv 1909.03004, eq. 2).
    """
    ordered = np.sort(np.asarray(scores, dtype=float))
    shares = np.arange(len(ordered) + 1) / len(ordered)
    return [float(ordered @ np.diff(shares**k)) for k in range(1, len(ordered) + 1)]

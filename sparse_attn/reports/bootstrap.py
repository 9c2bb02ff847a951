"""Statistics of differences: intervals, p-values and expected best scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.stats

from sparse_attn.evaluation.metric import METRICS
from sparse_attn.reports.seed_statistics import LEVEL, Difference, paired

RESAMPLES = 9999
_SEED = 20240229
# indices per batch of resamples; all at once would exhaust memory for a large dev set
_BATCH = 2**22

Metric = Callable[[np.ndarray, np.ndarray], float]
# weights (B, examples), references (examples,), predictions (seeds, examples) -> (B, seeds)
Weighted = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


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
    & Hinkley 1997, eq. 4.11. A bootstrap of few seeds is overconfident. So each end is taken from
    the paired t interval over seeds if that lies further out, and p from the t-test if that is
    larger. With one seed, only examples are resampled.

    The difference is a share, not in percent; `n` is the number of seeds.

    Args:
        metric: a name in `evaluation.metric.METRICS`, or a function of labels and predictions.
        labels: (examples,)
        mapping, baseline: (seeds, examples), predictions; row i of both has the same seed.
        resamples: B, RESAMPLES by default.
    """
    if metric == "accuracy":
        return compare_means(1.0 * (mapping == labels), 1.0 * (baseline == labels), resamples)
    score = weighted_metric(metric, labels)
    both = np.concatenate([mapping, baseline])

    def gained(weights: np.ndarray) -> np.ndarray:
        ours, theirs = np.split(score(weights, labels, both), 2, axis=-1)
        return ours - theirs

    return _difference(gained, mapping.shape, resamples)


def compare_means(
    mapping: np.ndarray, baseline: np.ndarray, resamples: int | None = None
) -> Difference:
    """Compare as `compare` the means of per-example values (seeds, examples)."""
    gained = (mapping - baseline).T
    return _difference(lambda weights: weights @ gained / len(gained), mapping.shape, resamples)


def _difference(
    gained: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], resamples: int | None
) -> Difference:
    """Compute `compare`; `gained` maps weights (B, examples) to differences (B, seeds)."""
    seeds, examples = shape

    def rounded(weights: np.ndarray) -> np.ndarray:
        # the last digits depend on the processor's order of summation
        return np.round(gained(weights), 12)

    per_seed = rounded(np.ones((1, examples)))[0]
    value = round(float(per_seed.mean()), 12)
    if examples < 2:
        return Difference(value, (value, value), seeds, 1.0)
    over_seeds = paired(dict(enumerate(per_seed.tolist())), dict.fromkeys(range(seeds), 0.0))

    def statistic(*drawn: np.ndarray, axis: int) -> np.ndarray:
        found = rounded(_counts(drawn[-1], examples))
        return (found * (_counts(drawn[0], seeds) if seeds > 1 else 1)).sum(axis) / seeds

    result = scipy.stats.bootstrap(
        (np.arange(seeds), np.arange(examples)) if seeds > 1 else (np.arange(examples),),
        statistic,
        n_resamples=RESAMPLES if resamples is None else resamples,
        batch=max(1, _BATCH // (seeds + examples)),
        paired=False,
        vectorized=True,
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


def _counts(drawn: np.ndarray, size: int) -> np.ndarray:
    """Count 0, ..., size - 1 in each row of (B, n): (B, size)."""
    rows = np.arange(len(drawn))[:, None]
    flat = np.bincount((drawn + size * rows).ravel(), minlength=size * len(drawn))
    return flat.reshape(-1, size)


def p_value(distribution: np.ndarray) -> float:
    """min(1, 2 (1 + min(#{d <= 0}, #{d >= 0})) / (B + 1)) over the B values d."""
    # a difference of 0 may be computed as 1e-17
    values = np.round(distribution, 12)
    tail = min(int((values <= 0).sum()), int((values >= 0).sum()))
    return min(1.0, 2 * (1 + tail) / (len(values) + 1))


def weighted_metric(metric: str | Metric, labels: np.ndarray) -> Weighted:
    """Return the metric as a function of example weights (counts), vectorised over many weights."""
    if metric == "matthews_correlation" and set(np.unique(labels)) <= {0, 1}:
        # for two classes equal to Pearson's correlation
        return _pearson
    known = {"f1": _f1, "pearson": _pearson, "spearmanr": _spearman}
    if isinstance(metric, str):
        # not through `evaluate`, which would copy each of thousands of resamples
        return known.get(metric) or _repeating(METRICS[metric])
    return _repeating(metric)


def _repeating(metric: Metric) -> Weighted:
    """Return a weighted metric that repeats examples, for a metric without weights."""

    def score(weights: np.ndarray, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        found = []
        for counts in weights.astype(int):
            rows = np.repeat(np.arange(len(references)), counts)
            found.append([metric(references[rows], side[rows]) for side in predictions])
        return np.array(found)

    return score


def _f1(weights: np.ndarray, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """2 TP / (#(reference = 1) + #(prediction = 1)); 0 if both are 0."""
    right = 2 * weights @ (references * predictions).T
    return right / np.maximum(weights @ (references + predictions).T, 1)


def _pearson(weights: np.ndarray, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """cov(x, y) / (sd(x) sd(y)) from their moments; 0 where either is constant."""
    total = weights.sum(-1, keepdims=True)
    # centre by the means of all examples, or the squares would cancel
    x = (references - references.mean())[:, None]
    y = (predictions - predictions.mean(-1, keepdims=True)).T
    mean_x, mean_y = weights @ x / total, weights @ y / total
    covariance = weights @ (x * y) / total - mean_x * mean_y
    return covariance / np.sqrt(
        _variance(weights @ x**2 / total, mean_x) * _variance(weights @ y**2 / total, mean_y)
    )


def _variance(square: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """E[x^2] - E[x]^2; inf where x is constant up to rounding, so that correlations are 0."""
    found = square - mean**2
    return np.where(found > 1e-12 * square, found, np.inf)


def _spearman(weights: np.ndarray, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Pearson's correlation of the ranks in the sample; 0 where either is constant."""
    x = _ranks(weights, references)
    columns = []
    for side in predictions:
        y = _ranks(weights, side)
        square = (weights * x * x).sum(-1) * (weights * y * y).sum(-1)
        columns.append((weights * x * y).sum(-1) / np.sqrt(np.where(square > 0, square, np.inf)))
    return np.stack(columns, -1)


def _ranks(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Centred ranks (B, examples) of examples with these counts; ties share their mean."""
    _, codes, sizes = np.unique(values, return_inverse=True, return_counts=True)
    counts = np.add.reduceat(weights[:, np.argsort(codes)], sizes.cumsum() - sizes, axis=-1)
    ranks = counts.cumsum(-1) - (counts + counts.sum(-1, keepdims=True)) / 2
    return ranks[:, codes]


def expected_best(scores: Sequence[float]) -> list[float]:
    """E[max of k draws] = sum_i x_(i) ((i / N)^k - ((i - 1) / N)^k), for k = 1..N.

    Draws with replacement from the N scores (Dodge et al. 2019, arXiv 1909.03004, eq. 2).
    """
    ordered = np.sort(np.asarray(scores, dtype=float))
    shares = np.arange(len(ordered) + 1) / len(ordered)
    return [float(ordered @ np.diff(shares**k)) for k in range(1, len(ordered) + 1)]

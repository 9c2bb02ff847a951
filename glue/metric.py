"""The metrics of GLUE, by scikit-learn and SciPy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics


def accuracy(references: np.ndarray, predictions: np.ndarray) -> float:
    """#(prediction = reference) / n."""
    return float(sklearn.metrics.accuracy_score(references, predictions))


def f1(references: np.ndarray, predictions: np.ndarray) -> float:
    """2 TP / (2 TP + FP + FN) of class 1; 0 where class 1 is neither there nor predicted."""
    return float(sklearn.metrics.f1_score(references, predictions, zero_division=0.0))


def matthews_correlation(references: np.ndarray, predictions: np.ndarray) -> float:
    """(TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)); 0 where a factor is 0."""
    if _constant(references) or _constant(predictions):
        return 0.0
    return float(sklearn.metrics.matthews_corrcoef(references, predictions))


def pearson(references: np.ndarray, predictions: np.ndarray) -> float:
    """cov(x, y) / (sd(x) sd(y)); 0 where either is constant."""
    return _correlation(scipy.stats.pearsonr, references, predictions)


def spearmanr(references: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson's correlation of the ranks; 0 where either is constant."""
    return _correlation(scipy.stats.spearmanr, references, predictions)


def _correlation(
    function: Callable[..., Any], references: np.ndarray, predictions: np.ndarray
) -> float:
    # 0/0 by the formula; 0, as for Matthews' correlation, so that the best epoch can be chosen and
    # JSON records stay free of NaN
    if _constant(references) or _constant(predictions):
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        # SciPy would correlate float32 in float32
        pair = references.astype(np.float64), predictions.astype(np.float64)
        return float(function(*pair).statistic)


def _constant(values: np.ndarray) -> bool:
    return bool(np.ptp(values) == 0)


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    function.__name__: function
    for function in (accuracy, f1, matthews_correlation, pearson, spearmanr)
}

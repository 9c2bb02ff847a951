"""GLUE's metrics for `evaluate`, computed by scikit-learn and SciPy.

    metric = evaluate.load("sparse_attn/evaluation/metric.py", "MRPC", keep_in_memory=True)
    metric.compute(predictions=[0, 1], references=[0, 1])  # {"accuracy": 1.0, "f1": 1.0}

`evaluate` imports a copy of this file from its cache, so it imports nothing of this project.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
import scipy.stats
import sklearn.metrics


def accuracy(references: np.ndarray, predictions: np.ndarray) -> float:
    """#(prediction = reference) / n."""
    return float(sklearn.metrics.accuracy_score(references, predictions))


def f1(references: np.ndarray, predictions: np.ndarray) -> float:
    """2 TP / (2 TP + FP + FN) of class 1; 0 if class 1 neither occurs nor is predicted."""
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
    # 0/0 becomes 0, as in Matthews' correlation: the best epoch can be chosen, and JSON has no NaN
    if _constant(references) or _constant(predictions):
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        return float(function(references, predictions).statistic)


def _constant(values: np.ndarray) -> bool:
    return bool(np.ptp(values) == 0)


def _classes(name: str, values: np.ndarray) -> np.ndarray:
    if (broken := values[values != np.floor(values)]).size:
        raise ValueError(
            f"{name}: expected whole numbers, the classes, got {broken[0]}; use logits.argmax(-1)"
        )
    return values.astype(np.int64)


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    function.__name__: function
    for function in (accuracy, f1, matthews_correlation, pearson, spearmanr)
}
GLUE = {
    **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "wnli"), ("accuracy",)),
    **dict.fromkeys(("mrpc", "qqp"), ("accuracy", "f1")),
    "cola": ("matthews_correlation",),
    "stsb": ("pearson", "spearmanr"),
}


class GlueMetric(evaluate.Metric):
    """The metrics of one task.

    config_name is a task of GLUE, such as MRPC, or names of metrics with commas between them.
    """

    def _info(self) -> evaluate.MetricInfo:
        name = self.config_name
        self.metrics = GLUE.get(name.lower().replace("-", "")) or tuple(name.split(","))
        if not set(self.metrics) <= set(METRICS):
            raise ValueError(
                f"config_name={name!r}: expected a task of GLUE, which are {', '.join(GLUE)}, or "
                f"metrics, such as accuracy,f1, which are {', '.join(METRICS)}"
            )
        # SciPy would correlate float32 in float32, and a column of integers cut off decimals
        value = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=f"{', '.join(self.metrics)}, by scikit-learn and SciPy.",
            citation="Wang et al. 2019, arXiv 1804.07461",
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(
        self, predictions: Sequence[float], references: Sequence[float]
    ) -> dict[str, float]:
        pair = np.asarray(references), np.asarray(predictions)
        if {"pearson", "spearmanr"}.isdisjoint(self.metrics):
            pair = _classes("references", pair[0]), _classes("predictions", pair[1])
        return {name: METRICS[name](*pair) for name in self.metrics}

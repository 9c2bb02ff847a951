"""The metrics against scikit-learn and SciPy."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from transformers import EvalPrediction

from glue.metric import METRICS
from glue.scoring import compute_metrics
from glue.tasks import CLASSIFICATION_METRICS, REGRESSION_METRICS, TASKS


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("seed", range(3))
def test_against_scikit_learn_and_scipy(name: str, seed: int):
    task = TASKS[name]
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(57, task.num_labels)).astype(np.float32)
    labels: np.ndarray
    if task.regression:
        labels = rng.uniform(0, 5, size=57).astype(np.float32)
        expected = {
            "pearson": scipy.stats.pearsonr(labels.astype(float), logits[:, 0].astype(float))[0],
            "spearmanr": scipy.stats.spearmanr(labels, logits[:, 0])[0],
        }
    else:
        labels = rng.integers(task.num_labels, size=57)
        predicted = logits.argmax(axis=1)
        expected = {"accuracy": sklearn.metrics.accuracy_score(labels, predicted)}
        if task.num_labels == 2:
            expected["f1"] = sklearn.metrics.f1_score(labels, predicted)
            expected["matthews_correlation"] = sklearn.metrics.matthews_corrcoef(labels, predicted)
    got = compute_metrics(task)(EvalPrediction(predictions=logits, label_ids=labels))
    assert tuple(got) == task.metrics
    assert all(type(value) is float for value in got.values())
    assert got == pytest.approx({metric: expected[metric] for metric in task.metrics}, abs=1e-12)


def test_every_metric_a_task_may_name_is_there():
    assert set(METRICS) == set(CLASSIFICATION_METRICS) | set(REGRESSION_METRICS)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("rows", [1, 6])
def test_constant_predictions_and_references(name: str, rows: int):
    """Correlations and F1 are 0 where the formula is 0/0, and no warning escapes."""
    varied, constant = np.arange(rows) % 2, np.zeros(rows, dtype=int)
    if name in REGRESSION_METRICS:
        varied, constant = varied.astype(float), constant.astype(float)
    expected = 0.0 if name != "accuracy" else (varied == 0).mean()
    assert METRICS[name](varied, constant) == expected
    assert METRICS[name](constant, varied) == expected
    assert METRICS[name](constant, constant) == (1.0 if name == "accuracy" else 0.0)


@pytest.mark.filterwarnings("error")
def test_nearly_constant_predictions_do_not_warn():
    predictions = np.array([1.0, 1.0, 1.0 + 2.3e-16])
    assert np.isfinite(METRICS["pearson"](np.array([0.0, 1.0, 2.0]), predictions))


def test_outputs_beside_the_logits_are_passed_over():
    logits = np.array([[0.0, 1.0], [1.0, 0.0]])
    prediction = EvalPrediction(
        predictions=(logits, np.zeros((2, 3, 4))), label_ids=np.array([1, 1])
    )
    assert compute_metrics(TASKS["RTE"])(prediction) == {"accuracy": 0.5}


@pytest.mark.parametrize("name", ["RTE", "STS-B"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_diverged_model_is_not_scored(name: str, value: float):
    logits = np.ones((4, TASKS[name].num_labels))
    logits[1:3, 0] = value
    with pytest.raises(ValueError, match=f"{name}: the logits of 2 of 4 .*diverged.*learning_rate"):
        compute_metrics(TASKS[name])(EvalPrediction(predictions=logits, label_ids=np.zeros(4)))

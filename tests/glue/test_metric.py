"""The metric module against scikit-learn and SciPy, and as a module of `evaluate`."""

import json
import os
import warnings
from pathlib import Path

import evaluate
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from transformers import EvalPrediction

from glue.scoring import SCRIPT, compute_metrics, load_metric
from sparse_attn.evaluation.tasks import REGRESSION_METRICS, TASKS, get_task
from tests.commands import ROOT, python

LABELS = st.integers(0, 1), st.integers(0, 3)
CLASSES = st.one_of(*(st.lists(st.tuples(n, n), min_size=1, max_size=40) for n in LABELS))
SCORES = st.floats(-100, 100, width=32) | st.sampled_from([0.0, 1.0, 2.5])


def score(name: str, references: np.ndarray, predictions: np.ndarray) -> float:
    """One metric, by the module."""
    found = load_metric(name).compute(predictions=predictions, references=references)
    assert list(found) == [name]
    value: float = found[name]
    return value


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


@given(CLASSES)
def test_random_classes(pairs: list[tuple[int, int]]) -> None:
    """Bit for bit; one class, constant predictions and a single example included."""
    references, predictions = np.array(pairs).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a single class
        expected = {
            "accuracy": sklearn.metrics.accuracy_score(references, predictions),
            "matthews_correlation": sklearn.metrics.matthews_corrcoef(references, predictions),
        }
    if references.max() < 2 and predictions.max() < 2:
        expected["f1"] = sklearn.metrics.f1_score(references, predictions, zero_division=0)
    found = load_metric(",".join(expected)).compute(predictions=predictions, references=references)
    assert found == expected


@given(st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=40))
def test_random_scores(pairs: list[tuple[float, float]]) -> None:
    """Bit for bit from float32; 0 where SciPy has NaN, for a constant."""
    references, predictions = np.array(pairs, np.float32).T
    metrics = {"pearson": scipy.stats.pearsonr, "spearmanr": scipy.stats.spearmanr}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            name: function(references.astype(float), predictions.astype(float)).statistic
            for name, function in metrics.items()
        }
    if np.ptp(references) == 0 or np.ptp(predictions) == 0:
        assert all(np.isnan(value) for value in expected.values())
        expected = dict.fromkeys(metrics, 0.0)
    found = load_metric("stsb").compute(predictions=predictions, references=references)
    assert found == expected


@pytest.mark.parametrize("name", REGRESSION_METRICS)
def test_what_scipy_does_not_score(name: str) -> None:
    assert np.isnan(score(name, np.array([0.0, 1.0, 2.0]), np.array([1.0, np.nan, 0.0])))
    assert score(name, np.array([1.0]), np.array([2.0])) == 0.0  # of one row
    nearly_constant = np.array([1.0, 1.0, 1.0 + 2.3e-16])  # SciPy warns
    assert np.isfinite(score(name, np.array([0.0, 1.0, 2.0]), nearly_constant))


@pytest.mark.parametrize("sweep", sorted((ROOT / "results/glue").iterdir()), ids=lambda p: p.name)
def test_the_committed_records_have_these_scores(sweep: Path) -> None:
    lines = (sweep / "runs.jsonl").read_text().splitlines()[::8]
    finished = [found for line in lines if (found := json.loads(line)["results"])]
    assert finished
    for results in finished:
        compute = load_metric(get_task(results["task"])).compute
        for split, found in results["predictions"].items():
            several = f"{split}/" if len(results["predictions"]) > 1 else ""
            scores = compute(predictions=found["predicted"], references=found["labels"])
            # another processor sums Pearson's correlation in another order
            recorded = {name: results["metrics"][several + name] for name in scores}
            assert scores == pytest.approx(recorded, abs=1e-15)


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


@pytest.mark.parametrize("config", ["MRPC", "CoLA", "accuracy"])
@pytest.mark.parametrize("name", ["predictions", "references"])
def test_probabilities_are_no_classes(config: str, name: str) -> None:
    metric = evaluate.load(str(SCRIPT), config, keep_in_memory=True)
    right: dict[str, object] = {"predictions": [0, 1, 1], "references": [0.0, 1.0, 1.0]}
    assert set(metric.compute(**right).values()) == {1.0}
    with pytest.raises(ValueError, match=rf"{name}: expected whole numbers, .* got 0.7; .*argmax"):
        metric.compute(**{**right, name: np.array([0.7, 1.2, 1.9])})


@pytest.mark.parametrize("config", ["MRPC", "mrpc", "accuracy,f1"])
def test_it_is_a_module_of_evaluate(config: str) -> None:
    metric = evaluate.load(str(SCRIPT), config, keep_in_memory=True)
    assert isinstance(metric, evaluate.Metric)
    for prediction, reference in [(0, 1), (1, 1)]:
        metric.add(prediction=prediction, reference=reference)
    assert metric.compute() == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}


# any attempt to use a network is an error; the modules are imported once, then processes are forked
OFFLINE = """
import multiprocessing, os, socket
from pathlib import Path
import evaluate, numpy as np
from glue.scoring import compute_metrics
from sparse_attn.evaluation.tasks import TASKS

def refuse(*args):
    raise RuntimeError("the metric must not use the network")

class Prediction:
    predictions, label_ids = np.eye(2), np.array([0, 1])

def score(start):
    socket.socket.connect = socket.getaddrinfo = refuse
    start.wait()
    try:
        told = compute_metrics(TASKS["MRPC"])(Prediction)
    except OSError as error:
        told = error
    os.write(1, f"{told}\\n".encode())  # a line at once

def at_once(count):
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(count)
    processes = [fork.Process(target=score, args=[start]) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

at_once(6)
(copy,) = Path(evaluate.config.HF_MODULES_CACHE).rglob("metric.py")
os.write(1, f"{copy.stat().st_size}\\n".encode())
copy.write_text("")
at_once(1)
"""


@pytest.mark.slow
def test_processes_at_once_from_another_folder_without_a_network(tmp_path: Path) -> None:
    """Six processes that start with an empty cache; then one whose copy of the module is broken."""
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    env = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    strict = [
        "-W",
        "error",
        "-W",
        "ignore:This process:DeprecationWarning",
    ]  # of forks, Python 3.12
    *scores, size, error = python(*strict, "-c", OFFLINE, cwd=work, env=env).splitlines()
    assert scores == ["{'accuracy': 1.0, 'f1': 1.0}"] * 6
    assert int(size) == SCRIPT.stat().st_size
    assert error == (
        f"the copy of metric.py in {home}/modules/evaluate_modules is cut short, as a full disk "
        "leaves it; delete that folder"
    )
    # neither predictions nor folders for them
    assert os.listdir(home) == ["modules"]
    assert not list(work.iterdir())

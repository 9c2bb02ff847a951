"""Metrics of a task from the outputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import evaluate
import numpy as np
from transformers import EvalPrediction

from sparse_attn.evaluation import metric
from sparse_attn.evaluation.predictions import predictions_of
from sparse_attn.evaluation.tasks import Task

SCRIPT = Path(metric.__file__)


def load_metric(task: Task | str) -> evaluate.Metric:
    """Load the metric of a task, or one by name, without network; safe in many processes.

    Raises:
        OSError: `evaluate` cannot copy the module into its cache, or an earlier copy is truncated.
    """
    config = task if isinstance(task, str) else task.hub or ",".join(task.metrics)
    # in memory, because processes would share a file of predictions; `evaluate` still makes the
    # folder for that file
    with TemporaryDirectory() as folder:
        try:
            return evaluate.load(str(SCRIPT), config, cache_dir=folder, keep_in_memory=True)
        except (TypeError, SyntaxError, NameError) as error:
            copies = Path(evaluate.config.HF_MODULES_CACHE, "evaluate_modules")
            texts = {copy.read_bytes() for copy in copies.rglob(SCRIPT.name)}
            if texts <= {SCRIPT.read_bytes()}:
                raise
            raise OSError(
                f"the copy of {SCRIPT.name} in {copies} is cut short, as a full disk leaves it; "
                "delete that folder"
            ) from error


def compute_metrics(task: Task) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return a function for `Trainer(compute_metrics=...)`: logits and labels -> metrics."""
    metric = load_metric(task)

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        predictions = predictions_of(prediction.predictions, task)
        found: dict[str, float] = metric.compute(
            predictions=predictions, references=prediction.label_ids
        )
        return found

    return compute


def baseline(labels: Sequence[float], task: Task | str) -> dict[str, float]:
    """Return the metrics of `load_metric` for always predicting the most frequent label.

    The correlations of a regression are 0, as for any constant.
    """
    references = np.asarray(labels)
    values, counts = np.unique(references, return_counts=True)
    predictions = np.full_like(references, values[counts.argmax()])
    found: dict[str, float] = load_metric(task).compute(
        predictions=predictions, references=references
    )
    return found

"""Metrics of a task from the outputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from transformers import EvalPrediction

from glue.metric import METRICS
from glue.tasks import Task
from pipeline.fitting import DivergedError


def compute_metrics(task: Task) -> Callable[[EvalPrediction], dict[str, float]]:
    """The function for `Trainer(compute_metrics=...)`: logits and labels -> the task's metrics."""

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        predictions = predictions_of(prediction.predictions, task)
        return {name: METRICS[name](prediction.label_ids, predictions) for name in task.metrics}

    return compute


def baseline(labels: Sequence[float], task: Task) -> dict[str, float]:
    """The task's metrics for always predicting the most frequent label.

    The correlations of a regression are 0, as for any constant.
    """
    references = np.asarray(labels)
    values, counts = np.unique(references, return_counts=True)
    predictions = np.full_like(references, values[counts.argmax()])
    return {name: METRICS[name](references, predictions) for name in task.metrics}


def predictions_of(outputs: Any, task: Task) -> np.ndarray:
    """The class of the largest logit, or the score of a regression, for each example.

    Raises:
        DivergedError: a logit is NaN or infinite.
    """
    # Some models return more than their logits, which come first.
    logits = np.asarray(outputs[0] if isinstance(outputs, tuple) else outputs)
    broken = int((~np.isfinite(logits)).reshape(len(logits), -1).any(axis=1).sum())
    if broken:
        raise DivergedError(
            f"{task.name}: the logits of {broken} of {len(logits)} examples are NaN or infinite: "
            "training has diverged; lower train.learning_rate or do not train in fp16"
        )
    return logits.reshape(-1) if task.regression else logits.argmax(axis=-1)

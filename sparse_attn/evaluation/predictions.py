"""What a model predicts, by its outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_attn.evaluation.tasks import Task


class DivergedError(ValueError):
    """A loss, a score or an output is NaN or infinite.

    Args:
        message: which one, and what to lower.
        results: what was measured before, for results.json.
    """

    def __init__(self, message: str, results: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.results = results or {}


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

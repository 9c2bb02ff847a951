"""Predictions from a model's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_attn.evaluation.tasks import Task


# a ValueError too, as callers of `predictions_of` expect of wrong logits
class DivergedError(FloatingPointError, ValueError):
    """A loss, a score or an output is NaN or infinite.

    Args:
        message: names the value, and what to lower.
        results: measurements before the divergence, for results.json.
    """

    def __init__(self, message: str, results: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.results = results or {}


def predictions_of(outputs: Any, task: Task) -> np.ndarray:
    """Return each example's class with the largest logit, or its regression score.

    Raises:
        DivergedError: a logit is NaN or infinite.
    """
    # logits come first where a model returns several outputs
    logits = np.asarray(outputs[0] if isinstance(outputs, tuple) else outputs)
    broken = int((~np.isfinite(logits)).reshape(len(logits), -1).any(axis=1).sum())
    if broken:
        raise DivergedError(
            f"{task.name}: the logits of {broken} of {len(logits)} examples are NaN or infinite: "
            "training has diverged; lower train.learning_rate or do not train in fp16"
        )
    return logits.reshape(-1) if task.regression else logits.argmax(axis=-1)

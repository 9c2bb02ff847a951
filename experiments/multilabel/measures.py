"""F1 of predicted labels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.results import Results, Value
from sparse_attn.heads.multilabel_threshold import above
from sparse_attn.reports.seed_statistics import Estimate, estimate

AVERAGES = ("micro", "macro", "samples")


def f1_scores(decided: Tensor, target: Tensor) -> dict[str, float]:
    """F1 = 2 TP / (2 TP + FP + FN) by scikit-learn, 0 if undefined.

    Args:
        decided, target: [N, n], boolean or 0 and 1.

    Returns:
        micro: over all N n decisions; macro: mean over labels; samples: mean over rows, where a row
        without labels counts 0.
    """
    # slow to import
    from sklearn.metrics import f1_score

    true, found = target.bool().numpy(), decided.numpy()
    return {a: float(f1_score(true, found, average=a, zero_division=0)) for a in AVERAGES}


def micro_f1(decided: Tensor, target: Tensor) -> float:
    """micro-F1 as in `f1_scores`, but fast: boolean decided [N, n], target [N, n] of 0 and 1."""
    true = target.bool()
    both = (decided & true).sum().item()
    either = decided.sum().item() + true.sum().item()
    return 2 * both / either if either else 0.0


def micro_f1_by_threshold(
    log_p: Tensor, target: Tensor, thresholds: Sequence[float]
) -> dict[float, float]:
    """micro-F1 at each threshold; a label applies if p > threshold.

    Args:
        log_p: [N, n], -inf at exact zeros.
        target: [N, n], 0 and 1.
        thresholds: in [0, 1); 0 decides for the support.
    """
    return {t: micro_f1(above(log_p, t), target) for t in thresholds}


def f1(average: str) -> Value:
    """F1 of a run's results, in %."""
    return lambda run: 100 * run["f1"][average]


def by_threshold(results: Results, cell: Cell) -> dict[str, Estimate]:
    """micro-F1 in % of the final runs at each threshold."""
    runs = [run["micro_by_threshold"] for run in results.finished(cell)]
    found = {name: estimate(100 * run[name] for run in runs) for name in (runs or [{}])[0]}
    return {name: value for name, value in found.items() if value is not None}

"""A sweep of runs that take no time: 2 dimensions x 2 heads x (2 rates + 2 seeds) = 16."""

from typing import Any

from experiments.bottleneck.config import BottleneckRunConfig, BottleneckSweepConfig

TINY: dict[str, Any] = {
    "output_dir": "",
    "alphas": [0.1],
    "contexts": 30,
    "vocabularies": [6],
    "dimensions": [1, 3],
    "heads": {"softmax": {}, "mos": {"components": 2}},
    "learning_rates": [0.03, 0.1],
    "steps": 4,
    "batch": 10,
    "seeds": 2,
    "device": "cpu",
}


def sweep(**changes: Any) -> BottleneckSweepConfig:
    return BottleneckSweepConfig(**{**TINY, **changes})


def one(**changes: Any) -> BottleneckRunConfig:
    """One of its runs, with softmax."""
    tiny = {"contexts": 30, "vocabulary": 6, "dimension": 3, "steps": 4, "batch": 10}
    return BottleneckRunConfig(**{"output_dir": "", **tiny, "device": "cpu", **changes})

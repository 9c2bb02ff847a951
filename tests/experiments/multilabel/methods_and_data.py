"""A data set and methods for runs of a second."""

from dataclasses import replace
from typing import Any

from experiments.multilabel.config import MethodConfig, RunConfig
from experiments.multilabel.data.config import SyntheticConfig

DATA = SyntheticConfig(classes=4, labels=2, length=100, rows=240, features=12, hidden=8)
METHODS: dict[str, dict[str, Any]] = {
    "softmax": {"thresholds": [0.05, 0.1, 0.15, 0.2, 0.3]},
    "sparsemax-huber": {"mapping": "sparsemax", "loss": "sparsemax"},
    "sparsemax-hinge": {"mapping": "sparsemax", "loss": "sparsegen-hinge"},
    "sparsehourglass": {"mapping": "sparsehourglass"},
    "r-softmax": {"mapping": "r-softmax", "sparsity": "predicted"},
    "t-softmax": {"mapping": "t-softmax", "params": {"t": 1.0}, "learn": ["t"]},
    "entmax": {"mapping": "entmax", "params": {"alpha": 1.5}},
    "sigmoid": {"mapping": "sigmoid", "thresholds": [0.3, 0.5]},
}


def with_method(config: RunConfig, name: str) -> RunConfig:
    return replace(config, method=MethodConfig(**METHODS[name]))

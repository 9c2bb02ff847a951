"""Rows drawn by scikit-learn's generator of multi-label problems."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.multilabel.data.base import Batch, LabelledData
from experiments.multilabel.data.config import SyntheticConfig


class Rows(Dataset[Batch]):
    """Rows in memory, indexed by whole batches.

    Attributes:
        inputs: [N, features] float32.
        labels: [N, n] float32, 0 or 1.
    """

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs = inputs
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: int | slice | Tensor) -> Batch:
        return {"inputs": self.inputs[rows], "labels": self.labels[rows]}

    def __getitems__(self, rows: list[int]) -> Batch:
        return self[torch.tensor(rows)]


def whole(batch: Batch) -> Batch:
    """Collate function of `Rows`, which are already batched."""
    return batch


@lru_cache(maxsize=32)
def load_synthetic(config: SyntheticConfig, seed: int) -> LabelledData:
    """Draw rows by a seed.

    Source: Balazy et al. 2023, section 4.1: 5,000 rows of 128 features, a fifth for the test.
    Standardised features and held-out validation rows are our additions.
    """
    # slow to import
    from sklearn.datasets import make_multilabel_classification

    counts, labels = make_multilabel_classification(
        n_samples=config.rows,
        n_features=config.features,
        n_classes=config.classes,
        n_labels=config.labels,
        length=config.length,
        random_state=seed,
    )
    inputs = torch.from_numpy(counts).float()  # [N, features]
    if config.standardize:
        known = inputs[: config.parts[0]]
        inputs = (inputs - known.mean(0)) / known.std(0, correction=0).clamp(min=1e-6)
    targets = torch.from_numpy(labels).float()  # [N, n]
    train, validation, test = map(Rows, inputs.split(config.parts), targets.split(config.parts))
    return LabelledData(
        tuple(map(str, range(config.classes))), train, validation, test, collate=whole
    )

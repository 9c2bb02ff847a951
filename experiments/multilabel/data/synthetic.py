"""Rows drawn by scikit-learn's generator of multi-label problems."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.multilabel.data.base import Batch, LabelledData
from pipeline.config import check_fields


@dataclass(frozen=True)
class SyntheticConfig:
    """`sklearn.datasets.make_multilabel_classification`, and a two-layer network for it.

    Args:
        classes: number of labels n.
        labels: mean of the number of labels of a row, Poisson, before those above n are drawn
            again; 0 occurs.
        length: mean of the sum of a row's features, its length as a document.
        rows: all of them.
        features: of a row, counts of so many words.
        validation: share of the rows that is held out to choose the epoch and the threshold.
        test: share of the rows that is held out to the end.
        hidden: units of the network's hidden layer.
    """

    classes: int = 20
    labels: int = 5
    length: int = 2000
    rows: int = 5000
    features: int = 128
    validation: float = 0.1
    test: float = 0.2
    hidden: int = 128

    def __post_init__(self) -> None:
        check_fields(
            self,
            "synthetic",
            classes=(self.classes > 1, "at least 2"),
            labels=(0 < self.labels <= self.classes, f"1 to {self.classes}, the classes"),
            length=(self.length > 0, "at least 1"),
            features=(self.features > 0, "at least 1"),
            hidden=(self.hidden > 0, "at least 1"),
            validation=(0 < self.validation < 1, "a share in (0, 1)"),
            test=(0 < self.test < 1 - self.validation, "a share that leaves rows to train on"),
            rows=(min(self.parts) > 0, "enough for one row in every part"),
        )

    @property
    def parts(self) -> tuple[int, int, int]:
        """Rows of the training, validation and test set."""
        test, validation = (round(self.rows * share) for share in (self.test, self.validation))
        return self.rows - validation - test, validation, test


class Rows(Dataset[Batch]):
    """Rows in memory; a `DataLoader` takes a whole batch of them at once.

    Attributes:
        inputs: [N, features] float32.
        labels: [N, n] float32, 0 or 1.
    """

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs = inputs
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Batch:
        return {"inputs": self.inputs[row], "labels": self.labels[row]}

    def __getitems__(self, rows: list[int]) -> Batch:
        chosen = torch.tensor(rows)
        return {"inputs": self.inputs[chosen], "labels": self.labels[chosen]}


def whole(batch: Batch) -> Batch:
    """The collate function of `Rows`, which come as a batch."""
    return batch


@lru_cache(maxsize=32)
def load_synthetic(config: SyntheticConfig, seed: int) -> LabelledData:
    """Draw rows by a seed; features have mean 0 and variance 1 over the training rows.

    Source: Balazy et al. 2023, section 4.1: 5,000 rows of 128 features, a fifth for the test. That
    the features are standardised, and that validation rows are held out, is ours.
    """
    # a slow import
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
    known = inputs[: config.parts[0]]
    inputs = (inputs - known.mean(0)) / known.std(0, correction=0).clamp(min=1e-6)
    targets = torch.from_numpy(labels).float()  # [N, n]
    train, validation, test = map(Rows, inputs.split(config.parts), targets.split(config.parts))
    return LabelledData(
        tuple(map(str, range(config.classes))), train, validation, test, collate=whole
    )

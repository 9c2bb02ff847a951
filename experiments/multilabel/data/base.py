"""What every data set is once it has been read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class LabelledData:
    """The parts of a data set, no row of which is in two of them.

    An item is a dict of tensors, what the model's forward takes: "inputs" (of a `Classifier`) or
    "input_ids" and so on (of a Transformer), and "labels", float32 [n], 1 where the label applies.

    Attributes:
        labels: names of the n labels.
        train: what is learned from.
        validation: where the epoch and the threshold are chosen.
        test: looked at once, at the end; `validation` itself where there is no other.
        collate: makes a batch of what a `DataLoader` collects: a list of items, or what the data
            set's `__getitems__` gives.
        lengths: of the training rows, where batches are padded to their longest row: rows of
            similar length then come together.
    """

    labels: tuple[str, ...]
    train: Dataset[Batch]
    validation: Dataset[Batch]
    test: Dataset[Batch]
    collate: Callable[[Any], Batch]
    lengths: list[int] | None = None

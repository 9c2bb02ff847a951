"""A loaded data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class LabelledData:
    """The disjoint parts of a data set.

    An item is a dict of tensors, the arguments of the model's forward: "inputs" and "labels", which
    are float32 [n], 1 where the label applies.

    Attributes:
        labels: names of the n labels.
        train: rows to train on.
        validation: rows to choose the epoch and the threshold on.
        test: rows to evaluate once, at the end; `validation` itself if there is no other.
        collate: collate function of the `DataLoader`, for a list of items or the result of
            `__getitems__`.
    """

    labels: tuple[str, ...]
    train: Dataset[Batch]
    validation: Dataset[Batch]
    test: Dataset[Batch]
    collate: Callable[[Any], Batch]

"""Data sets from the Hugging Face hub or a folder that `datasets` reads, with a label column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
from torch import Tensor

from experiments.multilabel.data.tables import from_names
from sparse_attn.system.hub import load_from_hub

Part = tuple[datasets.Dataset, Tensor]  # rows without labels, labels [N, n] 0/1


def read_hub(
    name: str, splits: Mapping[str, str], columns: Sequence[str], label_column: str
) -> tuple[tuple[str, ...], dict[str, Part]]:
    """Return the label names, declared or found in the training rows, and the splits.

    Args:
        name: an id on the hub or a folder.
        splits: our split -> split of `datasets.load_dataset`, such as "train[:90%]".
        columns: required columns besides the labels.
        label_column: a list of names or numbers in each row.

    Raises:
        ConnectionError: the data set cannot be loaded.
        ValueError: a column is missing or of the wrong type, or a label is not in the training
            rows.
    """
    labels: tuple[str, ...] = ()
    parts = {}
    for split, theirs in splits.items():
        rows = _load(name, theirs, (*columns, label_column))
        names, lists = _label_lists(rows, label_column)
        labels = labels or names
        where = [(f"{name}, {theirs}, row {row}", list_) for row, list_ in enumerate(lists)]
        parts[split] = rows.select_columns(list(columns)), from_names(where, labels)
    return labels, parts


def _load(name: str, split: str, columns: Sequence[str]) -> datasets.Dataset:
    rows: datasets.Dataset = load_from_hub(
        name, split=split, what=f"split {split!r}", instead="use source: folder"
    )
    for column in columns:
        if column not in rows.column_names:
            raise ValueError(
                f"{name}: no column {column!r}; the columns are {', '.join(rows.column_names)}"
            )
    return rows


def _label_lists(rows: datasets.Dataset, column: str) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return all label names, declared or else sorted, and the names of each row."""
    inner: Any = getattr(rows.features[column], "feature", None)  # type of the list items
    if not isinstance(inner, datasets.ClassLabel | datasets.Value):
        raise ValueError(
            f"column {column!r}: expected a list of names or numbers in each row, got "
            f"{rows.features[column]}"
        )
    lists = list(rows[column])
    if isinstance(inner, datasets.ClassLabel):
        return tuple(inner.names), [inner.int2str(row) for row in lists]
    names = sorted({value for row in lists for value in row})
    return tuple(map(str, names)), [[str(value) for value in row] for row in lists]

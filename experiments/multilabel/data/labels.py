"""From how files spell the labels of a row to the 0/1 matrix of a data set."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.multilabel.data.tables import Row, listed


def from_names(rows: Iterable[tuple[str, Collection[str]]], labels: Sequence[str]) -> Tensor:
    """[N, n] float32, 1 where the names of a row hold the label.

    Args:
        rows: where each row stands, for errors, and the names of its labels, none included.
        labels: the n labels.

    Raises:
        ValueError: a name that is not a label.
    """
    positions = {label: position for position, label in enumerate(labels)}
    matrix = []
    for where, names in rows:
        row = [0.0] * len(labels)
        for name in names:
            if name not in positions:
                raise ValueError(
                    f"{where}: label {name!r} is not one of the {len(labels)}: {listed(labels)}"
                )
            row[positions[name]] = 1.0
        matrix.append(row)
    return torch.tensor(matrix).reshape(-1, len(labels))


def from_columns(rows: Iterable[Row], labels: Sequence[str]) -> Tensor:
    """[N, n] float32, of one column for each label that holds 0 or 1.

    Raises:
        ValueError: any other value.
    """
    matrix = [[_bit(record[label], where, label) for label in labels] for where, record in rows]
    return torch.tensor(matrix).reshape(-1, len(labels))


def split_names(value: Any, separator: str, where: str) -> list[str]:
    """Names joined by a separator, or a list of them as JSON can hold; an empty text holds none.

    Raises:
        ValueError: something else.
    """
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    if not isinstance(value, str):
        raise ValueError(
            f"{where}: the labels are {json.dumps(value)}, expected names joined by {separator!r} "
            "or a list of names"
        )
    return [name.strip() for name in value.split(separator)] if value.strip() else []


def _bit(value: Any, where: str, label: str) -> float:
    if value in ("0", "1", 0, 1):  # JSON has numbers and truth values
        return float(value)
    raise ValueError(f"{where}: column {label!r} holds {value!r}, expected 0 or 1")

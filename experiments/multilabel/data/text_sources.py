"""Where texts and their labels come from: one reader for each source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import datasets
import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.multilabel.data.config import TextConfig
from experiments.multilabel.data.hub import read_hub
from experiments.multilabel.data.labels import from_columns, from_names, split_names
from experiments.multilabel.data.tables import Row, find_table, missing_table, read_table, require
from experiments.multilabel.data.text import Texts
from glue.data import load_task, subset
from glue.tasks import get_task

Part = tuple[Texts, Tensor]  # texts and their labels, [N, n] 0/1
Parts = tuple[tuple[str, ...], dict[str, Part]]  # the labels, and the splits

HELD_OUT = 0.1  # share of a GLUE task's training rows for validation


def read_texts(config: TextConfig) -> Parts:
    """The labels, and by split the texts and their labels.

    Raises:
        ValueError, OSError: files or columns that are not there or cannot be read, or more
            train_rows than there are.
    """
    readers = {"folder": _read_folder, "glue": _read_glue, "hub": _read_hub}
    return readers[config.source](config)


def _read_folder(config: TextConfig) -> Parts:
    folder = Path(str(config.data_dir))
    labels: tuple[str, ...] = ()
    parts = {}
    for split in ("train", "validation", "test"):
        table = find_table(folder, split)
        if table is not None:
            rows = read_table(table)
            labels = labels or _label_names(config, rows)
            parts[split] = _texts_of(config, rows), _labels_of(config, rows, labels)
        elif split != "test":
            raise FileNotFoundError(f"text.data_dir: {missing_table(folder, split)}")
    return labels, _with_train_rows(parts, config.train_rows)


def _read_glue(config: TextConfig) -> Parts:
    task = get_task(str(config.dataset))
    if task.labels is None:
        raise ValueError(
            f"text.dataset={config.dataset}: its label is a number; expected a task with classes"
        )
    data = load_task(task, config.data_dir)
    train = subset(data, config.train_rows, HELD_OUT)
    splits = {"train": train["train"], "validation": train["selection"]}
    splits["test"] = data[task.dev_splits[0]]
    columns = ["text_a", "text_b"][: len(task.text)]
    return task.labels, {
        split: (
            _texts(rows, columns),
            F.one_hot(torch.tensor(rows["label"][:]), len(task.labels)).float(),
        )
        for split, rows in splits.items()
    }


def _read_hub(config: TextConfig) -> Parts:
    splits = {"train": config.train_split, "validation": config.validation_split}
    labels, found = read_hub(str(config.dataset), splits, config.text, str(config.label_column))
    parts = {split: (_texts(rows, config.text), matrix) for split, (rows, matrix) in found.items()}
    return labels, _with_train_rows(parts, config.train_rows)


def _texts(rows: datasets.Dataset, columns: Sequence[str]) -> Texts:
    return list(zip(*(rows[column] for column in columns), strict=True))


def _label_names(config: TextConfig, rows: Sequence[Row]) -> tuple[str, ...]:
    """Every name in label_column, sorted, or else the columns beside the text."""
    if config.label_column is None:
        return tuple(column for column in rows[0][1] if column not in config.text)
    return tuple(sorted({name for _, names in _names_of(config, rows) for name in names}))


def _labels_of(config: TextConfig, rows: Sequence[Row], labels: tuple[str, ...]) -> Tensor:
    if config.label_column is not None:
        return from_names(_names_of(config, rows), labels)
    require(rows, labels)
    return from_columns(rows, labels)


def _names_of(config: TextConfig, rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    column = str(config.label_column)
    require(rows, [column])
    return [(at, split_names(row[column], config.separator, at)) for at, row in rows]


def _texts_of(config: TextConfig, rows: Sequence[Row]) -> Texts:
    require(rows, config.text)
    texts = [tuple(row[column] for column in config.text) for _, row in rows]
    for (at, _), text in zip(rows, texts, strict=True):
        if not all(isinstance(part, str) and part.strip() for part in text):
            raise ValueError(f"{at}: expected a text in {' and '.join(config.text)}, got {text}")
    return texts


def _with_train_rows(parts: dict[str, Part], rows: int | None) -> dict[str, Part]:
    """So many of the training rows, which depend on nothing but their number."""
    texts, matrix = parts["train"]
    if rows is None:
        return parts
    if not 0 < rows <= len(texts):
        raise ValueError(
            f"text.train_rows={rows}: the training set has {len(texts)} rows; choose at most that"
        )
    chosen = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[:rows]
    return {**parts, "train": ([texts[row] for row in chosen.tolist()], matrix[chosen])}

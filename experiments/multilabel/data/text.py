"""Tokenized texts with any number of labels: your own folder, GLUE, the hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, DataCollatorWithPadding, PreTrainedTokenizerBase

from experiments.multilabel.data.base import LabelledData
from experiments.multilabel.data.config import TextConfig
from experiments.multilabel.data.hub import read_hub
from experiments.multilabel.data.tables import (
    from_columns,
    from_names,
    given_folder,
    read_splits,
    split_names,
)
from glue import model as models
from glue.data import subset
from sparse_attn.evaluation.data import load_task
from sparse_attn.evaluation.rows import Row, require
from sparse_attn.evaluation.tasks import get_task
from sparse_attn.hf.opening import resolve_model

Texts = list[tuple[str, ...]]  # a text or a pair for each row
Part = tuple[Texts, Tensor]  # texts and their labels, [N, n] 0/1
Parts = tuple[tuple[str, ...], dict[str, Part]]  # label names, splits

HELD_OUT = 0.1  # share of GLUE training rows used for validation


def load_text(config: TextConfig) -> LabelledData:
    """Load the data set of the config, tokenized for its model and padded per batch.

    Raises:
        ValueError, OSError: missing or unreadable files or columns, more train_rows than available,
            or a model limited to fewer tokens than max_length.
    """
    readers = {"folder": _read_folder, "glue": _read_glue, "hub": _read_hub}
    labels, parts = readers[config.source](config)
    tokenizer = load_tokenizer(config)
    sets: dict[str, Any] = {}
    for split, (texts, matrix) in parts.items():
        columns = [list(column) for column in zip(*texts, strict=True)]
        tokens = tokenizer(*columns, truncation=True, max_length=config.max_length)
        rows = datasets.Dataset.from_dict({**tokens, "labels": matrix.tolist()})
        sets[split] = rows.with_format("torch")
    return LabelledData(
        labels,
        train=sets["train"],
        validation=sets["validation"],
        test=sets.get("test", sets["validation"]),
        collate=DataCollatorWithPadding(tokenizer),
        lengths=[len(ids) for ids in sets["train"].with_format(None)["input_ids"]],
    )


def load_tokenizer(config: TextConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer; raise if it cannot pad or accepts fewer than max_length tokens."""
    path = resolve_model(config.model)
    tokenizer = models.load_tokenizer(path)
    if tokenizer.pad_token is None:
        raise ValueError(
            f"text.model={config.model!r}: its tokenizer has no padding token; set pad_token in "
            "tokenizer_config.json and pad_token_id in config.json"
        )
    models.check_length(config.max_length, AutoConfig.from_pretrained(path), tokenizer, "text")
    return tokenizer


def _read_folder(config: TextConfig) -> Parts:
    folder = given_folder(config.data_dir, "text.data_dir")
    stems = {split: folder / split for split in ("train", "validation", "test")}
    labels: tuple[str, ...] = ()
    parts = {}
    for split, (_, rows) in read_splits(stems, "text.data_dir").items():
        if config.label_column is None:
            labels = labels or tuple(name for name in rows[0][1] if name not in config.text)
            require(rows[0][1], labels, rows[0][0])
            parts[split] = _texts_of(config, rows), from_columns(rows, labels)
        else:
            require(rows[0][1], [config.label_column], rows[0][0])
            names = [
                (where, split_names(row[config.label_column], config.separator, where))
                for where, row in rows
            ]
            labels = labels or tuple(sorted({name for _, some in names for name in some}))
            parts[split] = _texts_of(config, rows), from_names(names, labels)
    return labels, _with_train_rows(parts, config.train_rows)


def _texts_of(config: TextConfig, rows: Sequence[Row]) -> Texts:
    require(rows[0][1], config.text, rows[0][0])
    texts = [tuple(row[column] for column in config.text) for _, row in rows]
    for (where, _), text in zip(rows, texts, strict=True):
        if not all(isinstance(part, str) and part.strip() for part in text):
            raise ValueError(f"{where}: expected a text in {' and '.join(config.text)}, got {text}")
    return texts


def _read_glue(config: TextConfig) -> Parts:
    task = get_task(str(config.dataset))
    if task.labels is None:
        raise ValueError(
            f"text.dataset={config.dataset}: a regression task; expected a classification task"
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


def _with_train_rows(parts: dict[str, Part], rows: int | None) -> dict[str, Part]:
    """Return the parts with a fixed subset of the training rows."""
    texts, matrix = parts["train"]
    if rows is None:
        return parts
    if not 0 < rows <= len(texts):
        raise ValueError(f"text.train_rows={rows}: expected 1 to {len(texts)}, the training rows")
    chosen = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[:rows]
    return {**parts, "train": ([texts[row] for row in chosen.tolist()], matrix[chosen])}

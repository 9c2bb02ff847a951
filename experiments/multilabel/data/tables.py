"""Read the tables of a data set and encode their labels as 0 and 1."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_attn.evaluation.rows import Row, read_rows

SUFFIXES = (".csv", ".tsv", ".jsonl")


def given_folder(data_dir: str | None, key: str) -> Path:
    """Return the folder of a config; it may be missing, because records leave out paths.

    Raises:
        ValueError: no folder given.
        FileNotFoundError: no such folder.
    """
    if data_dir is None:
        raise ValueError(f"{key}=None: expected a folder")
    if not Path(data_dir).is_dir():
        raise FileNotFoundError(f"{key}={data_dir}: no such folder")
    return Path(data_dir)


def read_splits(stems: dict[str, Path], key: str) -> dict[str, tuple[Path, list[Row]]]:
    """Read the file and rows of each split; "test" may be missing. All files are UTF-8.

    CSV and TSV start with a header; see `read_rows` for the formats.

    Args:
        stems: the file of each split, without its suffix (one of SUFFIXES).
        key: config key, for errors.

    Raises:
        FileNotFoundError: a split has no file.
        ValueError: a split has several files, no rows, an unreadable row or a duplicate column.
    """
    tables = {}
    for split, stem in stems.items():
        found = [path for suffix in SUFFIXES if (path := Path(f"{stem}{suffix}")).is_file()]
        if len(found) > 1:
            raise ValueError(
                f"{stem.parent}: expected one file for {stem.name}, got "
                f"{' and '.join(path.name for path in found)}; remove all but one"
            )
        if found:
            tables[split] = found[0], list(read_rows(found[0]))
            if not tables[split][1]:
                raise ValueError(f"{found[0]}: holds no rows")
        elif split != "test":
            raise FileNotFoundError(f"{key}: {_missing(stem)}")
    return tables


def from_columns(rows: Iterable[Row], labels: Sequence[str]) -> Tensor:
    """Labels [N, n] float32, from one 0/1 column per label.

    Raises:
        ValueError: any other value.
    """

    def bit(value: Any, where: str, label: str) -> float:
        if value in ("0", "1", 0, 1):  # JSON may have numbers or booleans
            return float(value)
        raise ValueError(f"{where}: column {label!r} holds {value!r}, expected 0 or 1")

    matrix = [[bit(record[label], where, label) for label in labels] for where, record in rows]
    return torch.tensor(matrix).reshape(-1, len(labels))


def from_names(rows: Iterable[tuple[str, Collection[str]]], labels: Sequence[str]) -> Tensor:
    """Labels [N, n] float32, 1 for the names of a row.

    Args:
        rows: place of each row, for errors, and its label names, possibly none.
        labels: the n label names.

    Raises:
        ValueError: an unknown name.
    """
    matrix = []
    for where, names in rows:
        for name in names:
            if name not in labels:
                raise ValueError(
                    f"{where}: label {name!r} is not one of the {len(labels)}: {listed(labels)}"
                )
        matrix.append([float(label in names) for label in labels])
    return torch.tensor(matrix).reshape(-1, len(labels))


def split_names(value: Any, separator: str, where: str) -> list[str]:
    """Label names, from a JSON list or joined by a separator; an empty string has none.

    Raises:
        ValueError: any other value.
    """
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    if not isinstance(value, str):
        raise ValueError(
            f"{where}: the labels are {json.dumps(value)}, expected names joined by {separator!r} "
            "or a list of names"
        )
    return [name.strip() for name in value.split(separator)] if value.strip() else []


def listed(names: Sequence[str], most: int = 20) -> str:
    """The first few names, for an error message."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _missing(stem: Path) -> str:
    folder = stem.parent
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else None
    found = "no such folder" if names is None else f"a folder with {listed(names, 5) or 'nothing'}"
    return f"expected a file {stem.name}{' or '.join(SUFFIXES)} in {folder}, got {found}"

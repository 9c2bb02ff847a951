"""A task made from your labelled files; its labels are read from the training file."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from sparse_attn.evaluation.tasks import REGRESSION_METRICS, Task
from sparse_attn.evaluation.text_files import read_rows, word_of

MOST_LABELS = 100
FEWEST_SCORES = 20  # a column with more different decimals than this holds scores, not labels


@cache
def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@cache  # the runs of a sweep share one reading of the file
def task_of_files(files: tuple[Path, ...], text: tuple[str, ...], label: str | None) -> Task:
    """Return a task named after its training file; without a validation file it has one split.

    A label column of numbers, of which more than FEWEST_SCORES different ones have decimals, makes
    a regression. Otherwise the labels are its different values, sorted.

    Args:
        files: the training file and, if there is one, the validation file: .csv, .tsv, .json or
            .jsonl.
        text: the one or two columns that hold the text.
        label: the column that holds the label.

    Raises:
        ValueError, FileNotFoundError: a file or a column is missing, a label is blank, or the
            labels are too few, too many or too much alike.
    """
    for option, file in zip(("train_file", "validation_file"), files, strict=False):
        if not file.is_file():
            raise FileNotFoundError(f"{option}={file}: there is no such file")
    train = files[0]
    _, first = next(read_rows(train, ()), ("", {}))
    if not first:
        raise ValueError(f"{train}: holds no rows")
    if not text or label is None:
        missing = "label_column" if text else "text_columns"
        raise ValueError(f"{missing}: missing; the columns of {train} are {', '.join(first)}")
    words = _words(train, text, label)
    labels = None if _are_scores(words) else _in_order(words)
    if labels and (alike := _alike(labels)):
        raise ValueError(
            f"label_column={label!r}: labels of {train} differ by case or spaces only: {alike}; "
            "spell them alike, or list them in a YAML file for train, sweep or compare"
        )
    if labels is not None and not 2 <= len(labels) <= MOST_LABELS:
        raise ValueError(
            f"label_column={label!r}: {train} has {len(labels)} different labels, expected 2 to "
            f"{MOST_LABELS}, or scores with decimals; another kind of task needs a YAML file"
        )
    metrics = REGRESSION_METRICS if labels is None else ("accuracy",)
    paths = [Path(os.path.abspath(file)) for file in files]
    root = Path(os.path.commonpath([path.parent for path in paths]))
    names = [path.relative_to(root).as_posix() for path in paths]
    return Task(
        train.name,  # with its ending, so that RTE.csv is not taken for the task of GLUE
        text,
        label,
        labels,
        splits=dict(zip(("train", "dev"), names, strict=False)),
        metrics=metrics,
        main_metric=metrics[0],
        root=root,
    )


def _words(file: Path, text: tuple[str, ...], label: str) -> set[str]:
    """Return the different labels of a file, as it spells them."""
    words = set()
    for where, row in read_rows(file, (*text, label)):
        word = word_of(row[label])
        if row[label] is None or not word.strip():
            raise ValueError(f"{where}: column {label!r} is blank; fill it in or delete the row")
        words.add(word)
    return words


def _alike(labels: Sequence[str]) -> str:
    """Name the labels that differ by case or spaces only, such as `'no', 'NO'; 'yes', 'yes '`."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(" ".join(label.split()).casefold(), []).append(repr(label))
    return "; ".join(", ".join(group) for group in groups.values() if len(group) > 1)


def _are_scores(words: Collection[str]) -> bool:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return False
    return len({number for number in numbers if not number.is_integer()}) > FEWEST_SCORES


def _in_order(words: Collection[str]) -> tuple[str, ...]:
    """Sort labels, whole numbers by their value."""
    whole = all(re.fullmatch(r"[+-]?\d+", word) for word in words)
    return tuple(sorted(sorted(words), key=int if whole else str))

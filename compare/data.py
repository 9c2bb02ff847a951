"""What a model reads, with labels if there are any: texts, pairs with scores, a task's dev set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from compare.command import Options
from glue.data import load_task, read_split
from glue.scoring import predictions_of
from glue.tasks import Task, get_task
from pipeline.tables import read_rows

PAIR = ("sentence1", "sentence2")


class Labels(NamedTuple):
    """What a quality is measured by.

    Attributes:
        metric: a name in `glue.metric.METRICS`.
        values: (N,)
        predict: a model's outputs for all inputs -> predictions (N,).
    """

    metric: str
    values: np.ndarray
    predict: Callable[[Tensor], np.ndarray]


class Data(NamedTuple):
    """Inputs of a model, one or two texts each.

    Attributes:
        source: which they are, for the page.
        task: of a classifier.
    """

    inputs: Sequence[tuple[str, ...]]
    source: str
    labels: Labels | None = None
    task: Task | None = None


def read_data(options: Options) -> Data:
    """The texts, pairs or task that the options name.

    Raises:
        ValueError, OSError: what is wrong with the file or the task, and where.
    """
    if options.task is not None:
        return _read_task(options.task, options.data_dir)
    if options.pairs is not None:
        return _read_pairs(options.pairs)
    assert options.texts is not None
    return _read_texts(options.texts)


def short(path: Path) -> str:
    """Its last two parts: a page is shared, and does not tell where it lies on this machine."""
    return "/".join(path.resolve().parts[-2:])


def _read_texts(path: Path) -> Data:
    option = _existing("--texts", path)
    if path.suffix == ".txt":
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{option}: not UTF-8 ({error}); save it as UTF-8") from None
        texts = [line.strip() for line in lines if line.strip()]
    else:
        texts = [_text(row["text"], where, "text") for where, row in read_rows(path, ["text"])]
    if not texts:
        raise ValueError(f"{option}: holds no text; give one text a line")
    return Data([(text,) for text in texts], short(path))


def _read_pairs(path: Path) -> Data:
    option = _existing("--pairs", path)
    firsts: list[tuple[str]] = []
    seconds: list[tuple[str]] = []
    scores = []
    for where, row in read_rows(path, (*PAIR, "score")):
        for texts, column in zip((firsts, seconds), PAIR, strict=True):
            texts.append((_text(row[column], where, column),))
        scores.append(_score(row["score"], where))
    _check(scores, option, "score")
    return Data([*firsts, *seconds], short(path), Labels("spearmanr", np.array(scores), _cosines))


def _read_task(name: str, folder: Path | None) -> Data:
    task = get_task(name)
    split = task.dev_splits[0]
    local = folder is not None or task.root is not None
    rows: Any = read_split(task, folder, split) if local else load_task(task)[split]
    texts = [rows[column] for column in ("text_a", "text_b")[: len(task.text)]]
    labels = np.array(rows["label"])
    _check(labels, f"--task {name}", "label")
    return Data(
        list(zip(*texts, strict=True)),
        f"{task.name} {split}",
        Labels(task.main_metric, labels, lambda outputs: predictions_of(outputs, task)),
        task,
    )


def _cosines(embeddings: Tensor) -> np.ndarray:
    """Of the first half with the second, all of length 1."""
    first, second = embeddings.double().chunk(2)
    return (first * second).sum(-1).numpy()


def _existing(option: str, path: Path) -> str:
    """The option with its value, for errors."""
    if not path.is_file():
        raise ValueError(f"{option} {path}: there is no such file")
    return f"{option} {path}"


def _text(value: object, where: str, column: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: column {column!r} holds {value!r}, expected a text")
    return value


def _score(value: Any, where: str) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(f"{where}: column 'score' holds {value!r}, expected a finite number")
    return score


def _check(labels: Sequence[float] | np.ndarray, option: str, what: str) -> None:
    if len(labels) == 0:
        raise ValueError(f"{option}: holds no rows")
    if np.ptp(labels) == 0:
        raise ValueError(
            f"{option}: every row has the {what} {labels[0]:g}, which measures nothing; give rows "
            f"with different {what}s"
        )

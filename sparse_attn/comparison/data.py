"""Inputs of a model, with labels if any: texts, pairs with scores, a task's dev set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from sparse_attn.comparison.options import PAIRS, TEXTS, Given
from sparse_attn.evaluation.data import load_task, read_split
from sparse_attn.evaluation.labelled_files import task_of_files
from sparse_attn.evaluation.metric import METRICS
from sparse_attn.evaluation.predictions import predictions_of
from sparse_attn.evaluation.tasks import Task, get_task
from sparse_attn.evaluation.text_files import SUFFIXES, number_of, read_lines, read_rows, text_of

PAIR = ("sentence1", "sentence2")
FOUND = "numbers found"
LEAST = 6  # rows; with fewer, all differences have one sign by chance in more than 5 % of cases
Metric = Callable[[np.ndarray, np.ndarray], float]


class Labels(NamedTuple):
    """Labels, and the metric that compares predictions with them.

    Attributes:
        metric: a name in `sparse_attn.evaluation.metric.METRICS`, or any name with `function`.
        values: the labels, (N,).
        predict: maps a model's outputs for all inputs to predictions (N,).
        function: a metric of values and predictions.
    """

    metric: str
    values: np.ndarray
    predict: Callable[[Tensor], np.ndarray]
    function: Metric | None = None

    def score(self, outputs: Tensor) -> float:
        """Return the metric of a model's outputs."""
        function = self.function or METRICS[self.metric]
        return function(self.values, self.predict(outputs))


class Data(NamedTuple):
    """Inputs of a model: one or two texts each, or all windows of a long text.

    Attributes:
        source: name of the data, for the page.
        task: the task of a classifier.
        windows: of a long text: tokens of each, stride, and tokens of the text.
    """

    inputs: Sequence[tuple[Any, ...]]
    source: str
    labels: Labels | None = None
    task: Task | None = None
    windows: dict[str, int] | None = None

    @property
    def rows(self) -> int:
        """Number of units to resample for intervals: labels, or inputs without labels."""
        return len(self.inputs if self.labels is None else self.labels.values)


def read_data(options: Given) -> Data:
    """Read the texts, pairs or task of the options.

    Raises:
        ValueError, OSError: what is wrong with the file or the task, and where.
    """
    if options.task is not None:
        return _read_task(options)
    if options.pairs is not None:
        return read_pairs(options.pairs, options.columns or PAIR, options.label_column or "score")
    assert options.texts is not None
    return read_texts(options.texts, options.columns)


def short(path: Path) -> str:
    """Return the last two parts of a path, because a shared page should not reveal the rest."""
    return "/".join(path.resolve().parts[-2:])


def read_texts(path: Path, columns: Sequence[str] = ()) -> Data:
    """Read texts, or pairs of texts, from a file; raises as `read_data`.

    Args:
        columns: one or two; by default `text`, or PAIR.
    """
    option = _checked("--texts", path, TEXTS, (".txt", *SUFFIXES))
    texts: list[tuple[str, ...]]
    if path.suffix == ".txt":
        texts = [(line.strip(),) for _, line in read_lines(path) if line.strip()]
    else:
        if not columns:
            _, first = next(read_rows(path, ()), ("", {}))
            columns = PAIR if first.keys() >= {*PAIR} and "text" not in first else ("text",)
        if len(columns) > 2:
            raise ValueError(f"--text_columns {','.join(columns)}: expected one or two columns")
        texts = [
            tuple(_text(row, where, column) for column in columns)
            for where, row in read_rows(path, columns, remedy="; name yours by --text_columns")
        ]
    if not texts:
        raise ValueError(f"{option}: holds no text; give one text a line")
    return Data(texts, short(path))


def read_long_text(path: Path, columns: Sequence[str] = ()) -> tuple[str, str]:
    """Read a file as one text, and the source's name; arguments and errors as `read_texts`."""
    if path.suffix != ".txt":
        found = read_texts(path, columns)
        return "\n\n".join(" ".join(text) for text in found.inputs), found.source
    option = _checked("--texts", path, TEXTS, (".txt", *SUFFIXES))
    text = "\n".join(line for _, line in read_lines(path))
    if not text.strip():
        raise ValueError(f"{option}: holds no text")
    return text, short(path)


def with_next_words(data: Data, predicted: Sequence[int]) -> Data:
    """Label texts by their next words, to measure perplexity.

    Args:
        predicted: number of words of each text that the model predicts.
    """
    counts = np.array(predicted)
    labels = Labels("perplexity", counts, lambda nll: nll[:, 0].double().numpy(), perplexity)
    return data._replace(labels=labels)


def with_answers(data: Data) -> Data:
    """Label windows by whether all words that they score are the likeliest."""
    ones = np.ones(len(data.inputs))
    labels = Labels(FOUND, ones, lambda found: found[:, 1].numpy(), share_found)
    return data._replace(labels=labels)


def share_found(ones: np.ndarray, found: np.ndarray) -> float:
    """Mean of `found`, 1 or 0."""
    return float(found.mean())


def perplexity(counts: np.ndarray, nll: np.ndarray) -> float:
    """exp(sum_i nll_i / sum_i n_i), nll_i = -log p of the n_i words of text i."""
    return float(np.exp(nll.sum() / max(1, counts.sum())))


def read_pairs(path: Path, columns: Sequence[str] = PAIR, label: str = "score") -> Data:
    """Read scored pairs, all first texts before all second ones; raises as `read_data`."""
    if len(columns) != 2:
        raise ValueError(f"--text_columns {','.join(columns)}: expected two columns for --pairs")
    option = _checked("--pairs", path, PAIRS, SUFFIXES)
    firsts: list[tuple[str]] = []
    seconds: list[tuple[str]] = []
    scores = []
    remedy = "; name yours by --text_columns and --label_column"
    for where, row in read_rows(path, (*columns, label), remedy=remedy):
        for texts, column in zip((firsts, seconds), columns, strict=True):
            texts.append((_text(row, where, column),))
        scores.append(number_of(row[label], where, label))
    _check(scores, option, label)
    return Data([*firsts, *seconds], short(path), Labels("spearmanr", np.array(scores), _cosines))


def _read_task(options: Given) -> Data:
    name, folder, file = options.task, options.data_dir, options.task_file
    assert name is not None
    if file is None:
        task = get_task(name)
    else:
        _checked("--task", file, "of labelled texts", SUFFIXES)
        # as its own dev set too, so that every row is measured
        task = task_of_files((file, file), options.columns, options.label_column)
    split = task.dev_splits[0]
    local = folder is not None or task.root is not None
    rows: Any = read_split(task, folder, split) if local else load_task(task)[split]
    texts = [rows[column] for column in ("text_a", "text_b")[: len(task.text)]]
    labels = np.array(rows["label"])
    _check(labels, f"--task {name}", "label")
    return Data(
        list(zip(*texts, strict=True)),
        f"{task.name} {split}" if file is None else short(file),
        Labels(task.main_metric, labels, lambda outputs: predictions_of(outputs, task)),
        task,
    )


def _cosines(embeddings: Tensor) -> np.ndarray:
    """Return the cosines of the first half with the second, all of length 1."""
    first, second = embeddings.double().chunk(2)
    return (first * second).sum(-1).numpy()


def _checked(option: str, path: Path, expected: str, suffixes: Sequence[str]) -> str:
    """Check the path; return the option with its value, for errors."""
    if not path.exists():
        raise ValueError(f"{option} {path}: there is no such file")
    if path.is_dir() or path.suffix not in suffixes:
        folder = "is a folder; " if path.is_dir() else ""
        raise ValueError(f"{option} {path}: {folder}expected a file {expected}")
    return f"{option} {path}"


def _text(row: dict[str, Any], where: str, column: str) -> str:
    text = text_of(row[column], where, column)
    if not text.strip():
        raise ValueError(f"{where}: column {column!r} is blank; fill it in or delete the row")
    return text


def _check(labels: Sequence[float] | np.ndarray, option: str, what: str) -> None:
    if len(labels) == 0:
        raise ValueError(f"{option}: holds no rows")
    if np.ptp(labels) == 0:
        raise ValueError(
            f"{option}: every row has the {what} {labels[0]:g}, which measures nothing; give rows "
            f"with different {what}s"
        )

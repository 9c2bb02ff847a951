"""What a model reads, with labels if there are any: texts, pairs with scores, a task's dev set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from sparse_attn.comparison.options import PAIRS, TEXTS, Given
from sparse_attn.evaluation.data import load_task, read_split
from sparse_attn.evaluation.metric import METRICS
from sparse_attn.evaluation.predictions import predictions_of
from sparse_attn.evaluation.rows import SUFFIXES, number_of, read_lines, read_rows, text_of
from sparse_attn.evaluation.tasks import Task, get_task

PAIR = ("sentence1", "sentence2")
Metric = Callable[[np.ndarray, np.ndarray], float]


class Labels(NamedTuple):
    """What a quality is measured by.

    Attributes:
        metric: a name in `sparse_attn.evaluation.metric.METRICS`, or another with its function.
        values: (N,)
        predict: a model's outputs for all inputs -> predictions (N,).
        function: of values and predictions.
    """

    metric: str
    values: np.ndarray
    predict: Callable[[Tensor], np.ndarray]
    function: Metric | None = None

    def score(self, outputs: Tensor) -> float:
        """The metric of a model's outputs."""
        function = self.function or METRICS[self.metric]
        return function(self.values, self.predict(outputs))


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

    @property
    def rows(self) -> int:
        """How many an interval draws from: the inputs, or what a label belongs to."""
        return len(self.inputs if self.labels is None else self.labels.values)


def read_data(options: Given) -> Data:
    """The texts, pairs or task that the options name.

    Raises:
        ValueError, OSError: what is wrong with the file or the task, and where.
    """
    if options.task is not None:
        return _read_task(options.task, options.data_dir)
    if options.pairs is not None:
        return read_pairs(options.pairs)
    assert options.texts is not None
    return read_texts(options.texts)


def short(path: Path) -> str:
    """Its last two parts: a page is shared, and does not tell where a file lies."""
    return "/".join(path.resolve().parts[-2:])


def read_texts(path: Path) -> Data:
    """The texts, or pairs of them, of a file; raises as `read_data`."""
    option = _checked("--texts", path, TEXTS, (".txt", *SUFFIXES))
    texts: list[tuple[str, ...]]
    if path.suffix == ".txt":
        texts = [(line.strip(),) for _, line in read_lines(path) if line.strip()]
    else:
        _, first = next(read_rows(path, ()), ("", {}))
        columns = PAIR if first.keys() >= {*PAIR} and "text" not in first else ("text",)
        texts = [
            tuple(_text(row, where, column) for column in columns)
            for where, row in read_rows(path, columns)
        ]
    if not texts:
        raise ValueError(f"{option}: holds no text; give one text a line")
    return Data(texts, short(path))


def with_next_words(data: Data, tokens: Sequence[int]) -> Data:
    """Unlabelled texts, labelled by their own words: perplexity.

    Args:
        tokens: of each text, all that the model reads.
    """
    counts = np.array(tokens) - 1  # nothing predicts the first
    labels = Labels("perplexity", counts, lambda nll: nll[:, 0].double().numpy(), perplexity)
    return data._replace(labels=labels)


def perplexity(counts: np.ndarray, nll: np.ndarray) -> float:
    """exp(sum_i nll_i / sum_i n_i), nll_i = -log p of the n_i words of text i."""
    return float(np.exp(nll.sum() / max(1, counts.sum())))


def read_pairs(path: Path) -> Data:
    """Pairs of texts with scores, all first texts before all second ones; raises as `read_data`."""
    option = _checked("--pairs", path, PAIRS, SUFFIXES)
    firsts: list[tuple[str]] = []
    seconds: list[tuple[str]] = []
    scores = []
    for where, row in read_rows(path, (*PAIR, "score")):
        for texts, column in zip((firsts, seconds), PAIR, strict=True):
            texts.append((_text(row, where, column),))
        scores.append(number_of(row["score"], where, "score"))
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


def _checked(option: str, path: Path, expected: str, suffixes: Sequence[str]) -> str:
    """The option with its value, for errors."""
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

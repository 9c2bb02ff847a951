"""Reads a task's splits, from files or from the hub, into columns text_a, (text_b,) label.

Nothing is dropped or guessed: an unreadable row is an error that names its file and line.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from sparse_attn.evaluation.tasks import HELD_OUT, Task
from sparse_attn.evaluation.text_files import number_of, read_rows, text_of, word_of
from sparse_attn.system.hub import load_from_hub
from sparse_attn.system.paths import safe_join

logger = logging.getLogger(__name__)

HUB = "nyu-mll/glue"
ROW = "row"  # column with the place of a row in its file, from 0
SHARE = 0.1  # of the rows of a task without a dev set, held out


def load_task(task: Task, data_dir: str | Path | None = None) -> datasets.DatasetDict:
    """Load all splits of a task from data_dir, else from the task's folder, else from the hub."""
    if data_dir is None and task.root is None:
        return _load_hub(task)
    files = {split: _read_file(task, data_dir, split) for split in task.splits}
    if HELD_OUT in task.dev_splits:
        return _held_out(files["train"], task)
    return datasets.DatasetDict(files)


def read_split(task: Task, data_dir: str | Path | None, split: str) -> datasets.Dataset:
    """Read one split of a task from its file.

    A GLUE file is `data_dir/RTE/train.tsv`; `read_rows` describes the formats.
    """
    if HELD_OUT in task.dev_splits and split in ("train", HELD_OUT):
        return load_task(task, data_dir)[split]
    return _read_file(task, data_dir, split)


def _held_out(rows: datasets.Dataset, task: Task) -> datasets.DatasetDict:
    """Hold out SHARE of the rows; the choice depends only on their number."""
    count = round(SHARE * len(rows))
    if count == 0:
        raise ValueError(
            f"{task.name}: {len(rows)} rows are too few to hold out a tenth of them; give more "
            "rows, or a file to evaluate on"
        )
    order = np.random.default_rng(0).permutation(len(rows))
    rows = rows.add_column(ROW, list(range(len(rows))))
    parts = {"train": order[count:], HELD_OUT: order[:count]}
    return datasets.DatasetDict({name: rows.select(np.sort(part)) for name, part in parts.items()})


def _read_file(task: Task, data_dir: str | Path | None, split: str) -> datasets.Dataset:
    path = _find(task, data_dir, split)
    features = _features(task)
    rows: dict[str, list[Any]] = {name: [] for name in features}
    ids = {label: number for number, label in enumerate(task.labels or ())}
    blank = []
    hub = ", or omit data_dir to read the hub's cleaned copy" if task.hub else ""
    for where, record in read_rows(path, (*task.text, task.label), task.columns, hub):
        for name, column in zip(features, task.text, strict=False):
            rows[name].append(text_of(record[column], where, column))
            if not rows[name][-1].strip():
                blank.append(f"{where}: column {column!r} is blank")
        word = word_of(record[task.label])
        if task.regression:
            rows["label"].append(_score(word, where, task))
        elif word in ids:
            rows["label"].append(ids[word])
        else:
            raise ValueError(f"{where}: label {word!r} is not one of {list(ids)}")
    if not rows["label"]:
        raise ValueError(f"an empty {split} set: {path} holds no rows")
    if blank:
        _report_blank(blank, task)
    return datasets.Dataset.from_dict(rows, features=features)


def _report_blank(places: list[str], task: Task) -> None:
    """Raise for blank texts in your own files; warn for GLUE's, which published numbers include."""
    more = f", and {len(places) - 1} more" if len(places) > 1 else ""
    if task.root is not None:
        raise ValueError(f"{places[0]}{more}; fill it in or delete the row")
    logger.warning("%s%s", places[0], more)


def _features(task: Task) -> datasets.Features:
    names = ("text_a", "text_b")[: len(task.text)]
    return datasets.Features(
        {name: datasets.Value("string") for name in names}
        | {"label": datasets.Value("float32" if task.regression else "int64")}
    )


def _score(word: str, where: str, task: Task) -> float:
    score = number_of(word, where, task.label)
    low, high = task.score_range or (-math.inf, math.inf)
    if not low <= score <= high:
        raise ValueError(f"{where}: score {word} is outside {low:g} to {high:g}")
    return score


def _find(task: Task, data_dir: str | Path | None, split: str) -> Path:
    if split not in task.splits:
        raise ValueError(f"{task.name} has no split {split!r}; it has {', '.join(task.splits)}")
    base = data_dir if data_dir is not None else task.root
    if base is None:
        raise ValueError(f"data_dir must name the folder of {_layout(task)}, got None")
    path = safe_join(Path(base) / task.folder, task.splits[split], f"{task.name}: splits.{split}")
    if path.is_file():
        return path
    if not Path(base).is_dir():
        raise FileNotFoundError(f"data_dir={base}: no such folder; expected {_layout(task)}")
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    held = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    raise FileNotFoundError(
        f"{task.name}: there is no file {path}. The folder {folder} holds: {held or 'nothing'}. "
        f"Expected layout: {_layout(task)}"
    )


def _layout(task: Task) -> str:
    return ", ".join(str(Path("data_dir") / task.folder / file) for file in task.splits.values())


def _load_hub(task: Task) -> datasets.DatasetDict:
    instead = f"give data_dir: the folder of the GLUE download, which holds {_layout(task)}"
    hub = load_from_hub(HUB, task.hub, what=task.name, instead=instead)
    features = _features(task)
    names = dict(zip((*task.hub_text, "label"), features, strict=True))
    splits = {}
    for split in task.splits:
        rows = hub[split.replace("dev", "validation")].select_columns(list(names))
        splits[split] = rows.rename_columns(names).cast(features)
    return datasets.DatasetDict(splits)

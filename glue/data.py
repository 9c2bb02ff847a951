"""Selection of the rows of a task for training and for evaluation."""

from __future__ import annotations

import datasets

from sparse_attn.evaluation.data import ROW
from sparse_attn.evaluation.tasks import HELD_OUT, Task


def subset(
    data: datasets.DatasetDict,
    rows: int | None,
    selection: float | None,
    limit: int | None = None,
) -> datasets.DatasetDict:
    """Draw `rows` of the training set, and replace the dev sets by a fraction of them, `selection`.

    The rows depend only on the data, so every run gets the same. `limit` bounds each split; smaller
    splits keep their order. A column `row` has each row's place in its file, from 0.

    Raises:
        ValueError: too few rows, or training or held-out rows would be empty.
    """
    data = datasets.DatasetDict(
        {
            # rows that were held out know their places in the file
            split: part if ROW in part.features else part.add_column(ROW, list(range(len(part))))
            for split, part in data.items()
        }
    )
    if limit is not None:
        for split, part in data.items():
            if len(part) > limit:
                data[split] = part.shuffle(seed=0).select(range(limit))
        rows = rows and min(rows, limit)
    train = data["train"]
    if rows is not None and not 0 < rows <= len(train):
        raise ValueError(f"train_rows={rows}: the training set has only {len(train)} rows")
    if rows is not None or selection is not None:
        train = train.shuffle(seed=0).select(range(rows or len(train)))
    if selection is None:
        return datasets.DatasetDict({**data, "train": train})
    held_out = round(selection * len(train))
    if not 0 < held_out < len(train):
        raise ValueError(
            f"selection={selection}: of {len(train)} training rows this holds out {held_out}; "
            "expected at least one, and at least one left to train on"
        )
    return datasets.DatasetDict(
        {
            "train": train.select(range(held_out, len(train))),
            "selection": train.select(range(held_out)),
        }
    )


def refuse_same_rows(data: datasets.DatasetDict, task: Task) -> None:
    """Raise ValueError if a dev set has the rows of the training set, which would be no test."""
    train = data["train"]
    for split, rows in data.items():
        if split != "train" and len(rows) == len(train) and rows[:] == train[:]:
            raise ValueError(
                f"{task.name}: the rows of {split} ({task.splits[split]}) are those of train "
                f"({task.splits['train']}), so the score would be of rows that were learned; give "
                f"other rows, or leave {split} out, and a tenth of train is held out"
            )


def described(task: Task, data: datasets.DatasetDict) -> str:
    """Return what labelled files were taken for, such as `pairs: 2 labels: no, yes`."""
    if task.labels is None:
        scores = data["train"]["label"][:]
        kind = f"a regression, {min(scores):g} to {max(scores):g}"
    else:
        kind = f"{len(task.labels)} labels: {', '.join(task.labels)}"
    held_out = "; a tenth of its rows is held out to evaluate on" * (HELD_OUT in task.dev_splits)
    return f"{task.name}: {kind}{held_out}"

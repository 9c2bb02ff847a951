"""Selection of the rows of a task for training and for evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import datasets

from sparse_attn.evaluation.data import ROW
from sparse_attn.evaluation.tasks import HELD_OUT, Task
from sparse_attn.reports.text import counted

CUT = "cut"  # column with whether a row had too many tokens


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
    """Raise ValueError if a file of dev rows holds only texts of the training set.

    GLUE's files are not checked.
    """
    if task.root is None:
        return
    for split in task.splits:
        rows = len(data[split])
        if split != "train" and _shared(data, split) == rows:
            raise ValueError(
                f"{task.name}: all {rows} rows of {split} ({task.splits[split]}) are in train "
                f"({task.splits['train']}), so the score would be of rows that were learned; give "
                f"other rows, or leave {split} out, and a tenth of train is held out"
            )


def described(task: Task, data: datasets.DatasetDict) -> str:
    """Return what labelled files were taken for.

    Such as `a.csv: 90 rows, 9 held out, one row is 11.1 points, 2 labels: no (40 rows), yes (50
    rows)`.

    Args:
        task: a task of labelled files.
        data: all its rows, from `load_task`.
    """
    (split,) = task.dev_splits
    evaluated, rows = len(data[split]), len(data["train"])
    if split == HELD_OUT:
        counts = f"{rows + evaluated} rows, {evaluated} held out"
    else:
        counts = f"{rows} rows, {evaluated} rows of {task.splits[split]} to evaluate on"
    if shared := _shared(data, split):
        counts += f" ({shared} with the texts of training rows, which makes scores too good)"
    if task.labels is not None:
        counts += f", one row is {100 / evaluated:.1f} points"
    labels = Counter(data["train"]["label"][:])
    if split == HELD_OUT:
        labels.update(data[split]["label"][:])
    if task.labels is None:
        kind = f"a regression, {min(labels):g} to {max(labels):g}"
    else:
        named = (f"{label} ({counted(labels[i], 'row')})" for i, label in enumerate(task.labels))
        kind = f"{len(task.labels)} labels: {', '.join(named)}"
    return f"{task.name}: {counts}, {kind}"


def cut_rows(data: datasets.DatasetDict, max_length: int) -> list[str]:
    """Return a line on how many rows `encode` has cut; none without any."""
    cut, rows = sum(sum(part[CUT]) for part in data.values()), sum(map(len, data.values()))
    line = f"{cut:,} of {rows:,} rows have more than {max_length} tokens and are cut there"
    return [f"{line}; --train.max_length reads more"] if cut else []


def _shared(data: datasets.DatasetDict, split: str) -> int:
    """Count the rows of a split whose texts are those of a training row."""
    learned = set(_texts(data["train"]))
    return sum(texts in learned for texts in _texts(data[split]))


def _texts(rows: datasets.Dataset) -> Iterator[tuple[str, ...]]:
    columns = [rows[name][:] for name in ("text_a", "text_b") if name in rows.features]
    return zip(*columns, strict=True)

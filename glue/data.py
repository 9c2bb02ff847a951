"""The rows of a task that a run trains on, and those that it is measured on."""

from __future__ import annotations

import datasets

ROW = "row"


def subset(
    data: datasets.DatasetDict,
    rows: int | None,
    selection: float | None,
    limit: int | None = None,
) -> datasets.DatasetDict:
    """`rows` of the training set, and `selection`, a fraction of them, instead of the dev sets.

    The rows depend only on the data: every run gets the same. `limit` bounds each split; one that
    is smaller stays in its order. A column `row` has each row's place in its file, from 0.

    Raises:
        ValueError: too few rows, or one of the two parts would be empty.
    """
    data = datasets.DatasetDict(
        {split: part.add_column(ROW, list(range(len(part)))) for split, part in data.items()}
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

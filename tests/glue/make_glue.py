"""Tiny folders laid out as the GLUE download is, with its quirks, and tasks of a user's own."""

from __future__ import annotations

import json
from pathlib import Path

from sparse_attn.evaluation.tasks import Task, get_task

ENTRY = """\
text: [premise, hypothesis]
label: verdict
labels: [entails, contradicts]
splits: {train: train.csv, dev: data/dev.csv}
"""

_PARSES = [f"sentence{n}_{kind}" for kind in ("binary_parse", "parse") for n in (1, 2)]
_MNLI = ["index", "promptID", "pairID", "genre", *_PARSES, "sentence1", "sentence2"]
_MNLI_DEV = [*_MNLI, "label1", "label2", "label3", "label4", "label5", "gold_label"]
_ORIGIN = ["genre", "filename", "year", "old_index", "source1", "source2"]

# task -> split -> columns, as the files of the download have them.
COLUMNS: dict[str, dict[str, list[str]]] = {
    name: {"train": columns, "dev": columns}
    for name, columns in {
        "CoLA": ["source", "label", "star", "sentence"],
        "SST-2": ["sentence", "label"],
        "MRPC": ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        "STS-B": ["index", *_ORIGIN, "sentence1", "sentence2", "score"],
        "QQP": ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
        "QNLI": ["index", "question", "sentence", "label"],
        "RTE": ["index", "sentence1", "sentence2", "label"],
        "WNLI": ["index", "sentence1", "sentence2", "label"],
    }.items()
} | {
    "MNLI": {
        "train": [*_MNLI, "label1", "gold_label"],
        "dev_matched": _MNLI_DEV,
        "dev_mismatched": _MNLI_DEV,
    }
}
TEXT_COLUMNS = {"sentence", "sentence1", "sentence2", "question", "question1", "question2"}
TEXT_COLUMNS |= {"#1 String", "#2 String"}
LABEL_COLUMNS = {"label", "Quality", "score", "is_duplicate", "gold_label"}
LABELS: dict[str, list[str]] = {
    "STS-B": ["5.000", "0.000", "3.800", "2.500"],
    "MNLI": ["neutral", "contradiction", "entailment"],
    "QNLI": ["not_entailment", "entailment"],
    "RTE": ["not_entailment", "entailment"],
}
# What trips a reader that knows quotes, or that ends lines as str.splitlines does.
QUIRKS = [
    'he called " the witness',
    '"',
    '" 100 percent behind George Bush " and looked',
    "'s own \"words",
    "a naïve café , 漢字",
    "line\u2028and paragraph\u2029separators",
    "next\x85line , form\x0cfeed , vertical\x0btab",
    "a lone\rreturn",
]


def text(row: int, column: int) -> str:
    """The text of one cell: a quirk, and something of its own."""
    return f"{QUIRKS[(row + column) % len(QUIRKS)]} , row {row} column {column} ."


def label(task: str, row: int) -> str:
    """The label of one row, as the file spells it."""
    labels = LABELS.get(task, ["0", "1"])
    return labels[row % len(labels)]


def write_task(data_dir: Path, task: str, train: int = 9, dev: int = 5) -> Path:
    """Write `data_dir/<task>/*.tsv` with so many rows, and return that folder."""
    folder = data_dir / task
    folder.mkdir(parents=True)
    for split, columns in COLUMNS[task].items():
        lines = [] if task == "CoLA" else ["\t".join(columns)]
        for row in range(train if split == "train" else dev):
            texts = iter(range(2))
            cells = []
            for column in columns:
                if column in LABEL_COLUMNS:
                    cells.append(label(task, row))
                elif column in TEXT_COLUMNS:
                    cells.append(text(row, next(texts)))
                else:
                    cells.append("*" if column == "star" else str(row))
            lines.append("\t".join(cells))
        mark = "\ufeff" if task == "MRPC" else ""
        (folder / f"{split}.tsv").write_bytes((mark + "\n".join(lines) + "\n").encode())
    return folder


def edit(path: Path, line: int, old: str, new: str) -> None:
    """Replace `old` by `new` in one line (counted from 1) of a file."""
    lines = path.read_bytes().split(b"\n")
    assert old.encode() in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old.encode(), new.encode())
    path.write_bytes(b"\n".join(lines))


def written_task(folder: Path, entry: str) -> Task:
    """The task that own.yaml describes."""
    path = folder / "own.yaml"
    path.write_text(entry, encoding="utf-8")
    return get_task(path)


def own_task(folder: Path, suffix: str, **changes: object) -> Task:
    """Stars of reviews."""
    entry: dict[str, object] = {
        "text": "review",
        "label": "stars",
        "labels": [1, 2],
        "splits": {"train": f"train{suffix}", "dev": f"dev{suffix}"},
    }
    return written_task(folder, json.dumps(entry | changes))

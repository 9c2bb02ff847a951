"""The nine tasks of GLUE, and tasks described in YAML."""

from pathlib import Path

import pytest

from sparse_attn.evaluation.tasks import TASKS, get_task
from tests.glue.make_glue import COLUMNS, ENTRY, written_task


def test_the_nine_tasks() -> None:
    assert set(TASKS) == set(COLUMNS)
    assert [name for name, task in TASKS.items() if task.regression] == ["STS-B"]
    assert {name: task.metrics for name, task in TASKS.items()} == {
        "CoLA": ("matthews_correlation",),
        "SST-2": ("accuracy",),
        "MRPC": ("accuracy", "f1"),
        "STS-B": ("pearson", "spearmanr"),
        "QQP": ("accuracy", "f1"),
        "MNLI": ("accuracy",),
        "QNLI": ("accuracy",),
        "RTE": ("accuracy",),
        "WNLI": ("accuracy",),
    }


@pytest.mark.parametrize("name", ["SST-2", "sst-2", "Sst2", "sst_2"])
def test_names_in_any_case(name: str) -> None:
    assert get_task(name) is TASKS["SST-2"]


SHORT = ENTRY.replace("[entails, contradicts]", "null")
LONG = """\
name: ours
text: t
label: y
labels: [0, 1]
metrics: [accuracy, f1]
main_metric: f1
columns: [t, y]
splits: {train: a.tsv, dev_old: b.tsv, dev_new: c.tsv}
"""
PAIR = {"name": "own", "text": ("premise", "hypothesis"), "label": "verdict", "columns": None}
PAIR |= {"splits": {"train": "train.csv", "dev": "data/dev.csv"}, "dev_splits": ("dev",)}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (ENTRY, {**PAIR, "labels": ("entails", "contradicts"), "metrics": ("accuracy",)}),
        (SHORT, {**PAIR, "labels": None, "metrics": ("pearson", "spearmanr")}),
        (SHORT, {"regression": True, "main_metric": "pearson"}),
        (LONG, {"name": "ours", "text": ("t",), "labels": ("0", "1"), "columns": ("t", "y")}),
        (LONG, {"metrics": ("accuracy", "f1"), "main_metric": "f1"}),
        (LONG, {"dev_splits": ("dev_old", "dev_new")}),
    ],
)
def test_a_task_from_yaml(entry: str, expected: dict[str, object], tmp_path: Path) -> None:
    task = written_task(tmp_path, entry)
    assert {key: getattr(task, key) for key in expected} == expected
    assert task.root == tmp_path

"""The nine tasks of GLUE, and tasks described in YAML."""

import dataclasses
from pathlib import Path

import pytest

from sparse_attn.evaluation.tasks import TASKS, Task, get_task
from tests.commands import python
from tests.glue.make_glue import COLUMNS, ENTRY, LABELS, written_task


def test_the_nine_tasks():
    assert set(TASKS) == set(COLUMNS)
    assert [name for name, task in TASKS.items() if task.regression] == ["STS-B"]
    assert [name for name, task in TASKS.items() if len(task.text) == 1] == ["CoLA", "SST-2"]
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
    assert [task.hub for task in TASKS.values()] == [
        "cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli",
    ]  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_columns_and_labels_are_those_of_the_download(name: str):
    task = TASKS[name]
    assert task.name == task.folder == name
    assert set(task.splits) == set(COLUMNS[name])
    for columns in COLUMNS[name].values():
        assert set(task.text) | {task.label} <= set(columns)
    if not task.regression:
        assert set(task.labels or ()) == set(LABELS.get(name, ["0", "1"]))


def test_class_ids_are_those_of_the_hub():
    assert TASKS["RTE"].labels == TASKS["QNLI"].labels == ("entailment", "not_entailment")
    assert TASKS["MNLI"].labels == ("entailment", "neutral", "contradiction")
    assert TASKS["MNLI"].num_labels == 3
    assert TASKS["MNLI"].dev_splits == ("dev_matched", "dev_mismatched")
    assert TASKS["STS-B"].num_labels == 1


@pytest.mark.parametrize("name", ["SST-2", "sst-2", "Sst2", "sst_2"])
def test_names_in_any_case(name: str):
    assert get_task(name) is TASKS["SST-2"]


@pytest.mark.parametrize(("name", "near"), [("mrcp", "MRPC"), ("sts", "STS-B"), ("qlni", "QNLI")])
def test_an_unknown_task_names_the_nearest(name: str, near: str):
    with pytest.raises(ValueError, match=f"unknown task '{name}'; the nearest: .*{near}.*YAML"):
        get_task(name)


def test_a_task_from_yaml(tmp_path: Path):
    assert written_task(tmp_path, ENTRY) == Task(
        name="own",
        text=("premise", "hypothesis"),
        label="verdict",
        labels=("entails", "contradicts"),
        splits={"train": "train.csv", "dev": "data/dev.csv"},
        metrics=("accuracy",),
        main_metric="accuracy",
        root=tmp_path,
    )


def test_a_task_from_yaml_with_every_key(tmp_path: Path):
    entry = (
        "name: ours\ntext: t\nlabel: y\nlabels: [0, 1]\nmetrics: [accuracy, f1]\nmain_metric: f1\n"
        "columns: [t, y]\nsplits: {train: a.tsv, dev_old: b.tsv, dev_new: c.tsv}\n"
    )
    task = written_task(tmp_path, entry)
    assert (task.name, task.text, task.labels) == ("ours", ("t",), ("0", "1"))
    assert (task.metrics, task.main_metric) == (("accuracy", "f1"), "f1")
    assert task.columns == ("t", "y")
    assert task.dev_splits == ("dev_old", "dev_new")


def test_a_regression_from_yaml(tmp_path: Path):
    task = written_task(tmp_path, ENTRY.replace("[entails, contradicts]", "null"))
    assert task.regression
    assert task.metrics == ("pearson", "spearmanr")
    assert task.main_metric == "pearson"


def test_tasks_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASKS["RTE"].name = "other"  # type: ignore[misc]


def test_the_module_is_light():
    heavy = "{'torch', 'numpy', 'datasets'}"
    code = f"import sys, sparse_attn.evaluation.tasks; print(sorted({heavy} & set(sys.modules)))"
    assert python("-W", "error", "-c", code) == "[]\n"

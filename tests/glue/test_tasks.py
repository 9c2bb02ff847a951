"""The nine tasks of GLUE, and tasks described in YAML."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from glue.tasks import TASKS, Task, get_task
from tests.glue.make_glue import COLUMNS, LABELS

ENTRY = """\
text: [premise, hypothesis]
label: verdict
labels: [entails, contradicts]
splits: {train: train.csv, dev: data/dev.csv}
"""


def write_entry(folder: Path, entry: str) -> Path:
    path = folder / "own.yaml"
    path.write_text(entry, encoding="utf-8")
    return path


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
    with pytest.raises(ValueError, match=r"unknown task 'wikipedia'; tasks are CoLA, .*WNLI"):
        get_task("wikipedia")


def test_a_task_from_yaml(tmp_path: Path):
    assert get_task(write_entry(tmp_path, ENTRY)) == Task(
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
    task = get_task(str(write_entry(tmp_path, entry)))
    assert (task.name, task.text, task.labels) == ("ours", ("t",), ("0", "1"))
    assert (task.metrics, task.main_metric) == (("accuracy", "f1"), "f1")
    assert task.columns == ("t", "y")
    assert task.dev_splits == ("dev_old", "dev_new")


def test_a_regression_from_yaml(tmp_path: Path):
    task = get_task(write_entry(tmp_path, ENTRY.replace("[entails, contradicts]", "null")))
    assert task.regression
    assert task.metrics == ("pearson", "spearmanr")
    assert task.main_metric == "pearson"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("labels: [entails, contradicts]\n", "", "missing key 'labels'"),
        ("label: verdict", "lable: verdict", r"unknown key 'lable' \(did you mean 'label'\?\)"),
        ("label: verdict", "label: verdict\nhub: rte", "unknown key 'hub'"),
        ("label: verdict", "label: 3", "label must be a string, got 3"),
        ("label: verdict", "label: premise", "other than the label's"),
        ("[premise, hypothesis]", "[a, b, c]", "one or two columns"),
        ("[premise, hypothesis]", "[a, a]", "one or two columns"),
        ("[entails, contradicts]", "[yes, no]", "got True; put it in quotes"),
        ("[entails, contradicts]", "[1.0, 2.0]", "got 1.0; put it in quotes"),
        ("[entails, contradicts]", "[entails]", "two or more different"),
        ("[entails, contradicts]", "[entails, entails]", "two or more different"),
        ("[entails, contradicts]", "[]", "labels must not be empty"),
        ("dev: data/dev.csv", "test: test.csv", "`train` and for one or more dev sets"),
        (", dev: data/dev.csv", "", "`train` and for one or more dev sets"),
        ("{train: train.csv, dev: data/dev.csv}", "train.csv", "splits must map"),
        ("label: verdict", "label: verdict\nmetrics: [pearson]", "metrics of a classification"),
        ("label: verdict", "label: verdict\nmetrics: []", "metrics must not be empty"),
        ("label: verdict", "label: verdict\nmain_metric: f1", "main_metric must be one of"),
        ("label: verdict", "label: verdict\ncolumns: [premise]", "must name 'hypothesis'"),
        ("[entails, contradicts]", "[a, b, c]\nmetrics: f1", "'f1' is that of the second of two"),
        ("[premise, hypothesis]", "[premise", "line"),
    ],
)  # fmt: skip
def test_a_wrong_entry_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str):
    assert old in ENTRY
    path = write_entry(tmp_path, ENTRY.replace(old, new))
    with pytest.raises(ValueError, match=message) as caught:
        get_task(path)
    assert str(path) in str(caught.value)


def test_an_entry_that_is_no_mapping_or_no_file(tmp_path: Path):
    with pytest.raises(ValueError, match=r"expected the keys text, label.*got list"):
        get_task(write_entry(tmp_path, "- text\n"))
    with pytest.raises(ValueError, match=r"expected the keys text, label.*got NoneType"):
        get_task(write_entry(tmp_path, ""))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.yml"):
        get_task(tmp_path / "absent.yml")


def test_yaml_is_loaded_safely(tmp_path: Path):
    with pytest.raises(ValueError, match="could not determine a constructor"):
        get_task(write_entry(tmp_path, "text: !!python/object/apply:os.getcwd []\n"))


def test_tasks_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASKS["RTE"].name = "other"  # type: ignore[misc]


def test_the_module_is_light():
    code = (
        "import sys, glue.tasks; print(sorted({'torch', 'numpy', 'datasets'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout == "[]\n"

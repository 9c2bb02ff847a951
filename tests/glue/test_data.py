"""Reading GLUE's files, a user's own, and the hub's copy."""

import csv
import json
import os
from pathlib import Path

import datasets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glue.data import subset
from sparse_attn.evaluation.data import load_task, read_split
from sparse_attn.evaluation.tasks import TASKS
from tests.commands import run
from tests.glue.make_glue import COLUMNS, edit, label, own_task, text, write_task

# Some of the rows


def splits(**rows: int) -> datasets.DatasetDict:
    return datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({"text_a": [f"{name} {i}" for i in range(count)]})
            for name, count in rows.items()
        }
    )


@pytest.mark.parametrize("limit", [None, 5, 6])
def test_a_split_that_is_not_cut_keeps_its_order(limit: int | None):
    found = subset(splits(train=5, dev=4), None, None, limit)
    assert {split: part["row"][:] for split, part in found.items()} == {
        "train": [0, 1, 2, 3, 4],
        "dev": [0, 1, 2, 3],
    }


@pytest.mark.parametrize(
    "given", [{"limit": 4}, {"rows": 4}, {"selection": 0.25}, {"rows": 6, "selection": 0.5}]
)
def test_rows_are_named_by_their_place_in_the_file(given: dict[str, float]):
    data = splits(train=8, dev=8)
    options = {"rows": None, "selection": None, **given}
    for split, part in subset(data, **options).items():
        source = "train" if split == "selection" else split
        assert part["text_a"][:] == [f"{source} {row}" for row in part["row"]]


# GLUE's files


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_read_whole_and_exactly(tmp_path: Path, name: str):
    write_task(tmp_path, name, train=9, dev=5)
    task = TASKS[name]
    data = load_task(task, tmp_path)
    assert {split: len(rows) for split, rows in data.items()} == {
        split: 9 if split == "train" else 5 for split in COLUMNS[name]
    }
    for rows in data.values():
        assert rows.column_names == ["text_a", *["text_b"][: len(task.text) - 1], "label"]
        for number, row in enumerate(rows):
            assert row["text_a"] == text(number, 0)
            if len(task.text) == 2:
                assert row["text_b"] == text(number, 1)
            if task.labels is None:
                assert row["label"] == pytest.approx(float(label(name, number)))
            else:
                assert task.labels[row["label"]] == label(name, number)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["with", "without"])
def test_line_ends(tmp_path: Path, ending: str, last: str):
    folder = tmp_path / "SST-2"
    folder.mkdir()
    content = ending.join(["sentence\tlabel", "a lone\rreturn\t0", 'b "\t1'])
    content += ending if last == "with" else ""
    (folder / "dev.tsv").write_bytes(content.encode())
    rows = read_split(TASKS["SST-2"], tmp_path, "dev")
    assert rows.to_dict() == {"text_a": ["a lone\rreturn", 'b "'], "label": [0, 1]}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\t\n", exclude_categories=["Cs"])), min_size=1
    )
)
def test_any_text_comes_back_and_no_row_is_lost(tmp_path: Path, texts: list[str]):
    folder = tmp_path / "SST-2"
    folder.mkdir(exist_ok=True)
    content = "sentence\tlabel\n" + "".join(f"{t}\t1\n" for t in texts)
    (folder / "dev.tsv").write_bytes(content.encode())
    assert read_split(TASKS["SST-2"], tmp_path, "dev")["text_a"][:] == texts


# What is wrong with a file is said with its name and line


def test_a_missing_file_shows_the_folder_and_the_layout(tmp_path: Path):
    folder = write_task(tmp_path, "RTE")
    (folder / "dev.tsv").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load_task(TASKS["RTE"], tmp_path)
    message = str(caught.value)
    assert str(folder / "dev.tsv") in message
    assert "holds: train.tsv." in message
    assert "data_dir/RTE/train.tsv, data_dir/RTE/dev.tsv" in message.replace(os.sep, "/")


def test_a_missing_folder_shows_the_nearest_one(tmp_path: Path):
    write_task(tmp_path, "RTE")
    with pytest.raises(FileNotFoundError, match="holds: RTE/"):
        load_task(TASKS["MNLI"], tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds: nothing"):
        load_task(TASKS["MNLI"], tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="no: no such folder; expected data_dir/MNLI"):
        load_task(TASKS["MNLI"], tmp_path / "no")


def test_broken_rows_of_qqp_are_all_named(tmp_path: Path):
    """The real train.tsv has rows split in two by a newline inside a question."""
    path = write_task(tmp_path, "QQP") / "train.tsv"
    edit(path, 3, "column 0", "column\n0")
    edit(path, 7, "column 1 .", "column\t1 .")
    with pytest.raises(ValueError, match=r"line 3: expected 6 columns .* got 4") as caught:
        read_split(TASKS["QQP"], tmp_path, "train")
    message = str(caught.value)
    assert "Broken rows: 3 (line 3, 4, 7)" in message
    assert "fix or delete these lines, or omit data_dir" in message


def test_blank_texts_of_glue_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = write_task(tmp_path, "SST-2", dev=3)
    edit(folder / "dev.tsv", 3, text(1, 0), " ")
    assert read_split(TASKS["SST-2"], tmp_path, "dev")["text_a"][1] == " "
    assert f"{folder / 'dev.tsv'}, line 3: column 'sentence' is blank" in caplog.text


# A user's own files

TEXTS = ['two\nlines, a comma and a "quote"', "a separator\u2028here", "tab\there", "plain, \r\n x"]
# other readers take these for times, blanks and numbers
TEXTS += ["2020-01-01", "NA", "01", " 1.0"]


def write_own(path: Path, texts: list[str] = TEXTS) -> None:
    records = [{"id": n, "stars": 1 + n % 2, "review": review} for n, review in enumerate(texts)]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            writer = csv.DictWriter(file, ["id", "stars", "review"])
            writer.writeheader()
            writer.writerows(records)
        elif path.suffix == ".json":
            json.dump(records, file, ensure_ascii=False, indent=1)
        else:
            file.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in records)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl"])
@pytest.mark.parametrize("where", ["beside the entry", "data_dir"])
def test_own_files(tmp_path: Path, suffix: str, where: str):
    folder = tmp_path / where
    folder.mkdir()
    task = own_task(folder if where == "beside the entry" else tmp_path, suffix)
    for split in ("train", "dev"):
        write_own(folder / f"{split}{suffix}")
    data = load_task(task, folder if where == "data_dir" else None)
    assert data["train"].to_dict() == {"text_a": TEXTS, "label": 4 * [0, 1]}
    assert data["dev"].to_dict() == data["train"].to_dict()


def test_own_tsv_without_a_header(tmp_path: Path):
    task = own_task(tmp_path, ".tsv", labels=None, columns=["stars", "review"])
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text('1.5\ta "b\n-7\tc\n', encoding="utf-8")
    assert load_task(task)["dev"].to_dict() == {"text_a": ['a "b', "c"], "label": [1.5, -7.0]}


# The hub


def hub_copy(name: str) -> datasets.DatasetDict:
    """A data set with the columns and features of nyu-mll/glue."""
    task = TASKS[name]
    label_feature = (
        datasets.Value("float32")
        if task.labels is None
        else datasets.ClassLabel(names=list(task.labels))
    )
    features = {column: datasets.Value("string") for column in task.hub_text}
    features |= {"label": label_feature, "idx": datasets.Value("int32")}
    splits = {}
    for split in (*task.splits, "test"):
        values: dict[str, list[object]] = {
            column: [f"{column} {split}"] for column in task.hub_text
        }
        values |= {"label": [1], "idx": [7]}
        splits[split.replace("dev", "validation")] = datasets.Dataset.from_dict(
            values, datasets.Features(features)
        )
    return datasets.DatasetDict(splits)


@pytest.mark.parametrize("name", TASKS)
def test_the_hub_gives_the_same_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str):
    calls = []

    def load_dataset(*args: str) -> datasets.DatasetDict:
        calls.append(args)
        return hub_copy(name)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = TASKS[name]
    data = load_task(task)
    assert calls == [("nyu-mll/glue", task.hub)]
    assert list(data) == list(task.splits)
    write_task(tmp_path, name)
    for split, rows in data.items():
        assert rows.features == read_split(task, tmp_path, split).features
        assert rows[0]["text_a"] == f"{task.hub_text[0]} {split}"
        assert rows[0]["label"] == 1


@pytest.mark.slow
def test_without_a_network_the_error_names_data_dir(tmp_path: Path):
    code = "from sparse_attn.evaluation import data, tasks; data.load_task(tasks.TASKS['RTE'])"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    last = run("-W", "error", "-c", code, env=offline).stderr.strip().splitlines()[-1]
    assert last.startswith("ConnectionError: could not get RTE from the data set nyu-mll/glue")
    assert "give data_dir: the folder of the GLUE download" in last
    assert "data_dir/RTE/train.tsv" in last.replace(os.sep, "/")

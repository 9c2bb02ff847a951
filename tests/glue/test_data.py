"""Reading GLUE's files, a user's own, and the hub's copy."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glue.data import load_task, read_split
from glue.tasks import TASKS, Task, get_task
from tests.glue.make_glue import COLUMNS, label, text, write_task

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "glue"
REAL_ROWS = {
    ("MRPC", "train"): 3667,
    ("MRPC", "dev"): 408,
    ("SST-2", "train"): 67349,
    ("SST-2", "dev"): 872,
    ("STS-B", "train"): 5749,
    ("STS-B", "dev"): 1500,
    ("WNLI", "train"): 635,
    ("WNLI", "dev"): 71,
    ("QNLI", "dev"): 5463,
}


def edit(path: Path, line: int, old: str, new: str) -> None:
    """Replace `old` by `new` in one line (counted from 1) of a file."""
    lines = path.read_bytes().split(b"\n")
    assert old.encode() in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old.encode(), new.encode())
    path.write_bytes(b"\n".join(lines))


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


def test_column_types(tmp_path: Path):
    for name in ("SST-2", "STS-B"):
        write_task(tmp_path, name)
    assert read_split(TASKS["SST-2"], tmp_path, "dev").features == datasets.Features(
        {"text_a": datasets.Value("string"), "label": datasets.Value("int64")}
    )
    assert read_split(TASKS["STS-B"], tmp_path, "dev").features == datasets.Features(
        {
            "text_a": datasets.Value("string"),
            "text_b": datasets.Value("string"),
            "label": datasets.Value("float32"),
        }
    )


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


@pytest.mark.parametrize(("name", "split"), REAL_ROWS)
def test_real_files_are_read_whole(name: str, split: str):
    if not REAL.is_dir():
        pytest.skip("the GLUE files are not at ../shared/data/glue")
    rows = read_split(TASKS[name], REAL, split)
    content = (REAL / name / f"{split}.tsv").read_bytes()
    assert len(rows) == REAL_ROWS[name, split] == content.count(b"\n") - 1
    # Nothing is changed on the way: the first text column, cell by cell.
    lines = content.decode("utf-8-sig").split("\n")[:-1]
    column = lines[0].split("\t").index(TASKS[name].text[0])
    assert rows["text_a"][:] == [line.split("\t")[column] for line in lines[1:]]


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


def test_an_unknown_split(tmp_path: Path):
    with pytest.raises(ValueError, match="MNLI has no split 'dev'; it has train, dev_matched, dev"):
        read_split(TASKS["MNLI"], tmp_path, "dev")


def test_no_data_dir_where_one_is_needed():
    with pytest.raises(ValueError, match=r"data_dir must name the folder of .*train\.tsv"):
        read_split(TASKS["RTE"], None, "train")


def test_a_file_cut_short(tmp_path: Path):
    path = write_task(tmp_path, "MRPC") / "train.tsv"
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"\t")])
    with pytest.raises(
        ValueError, match=r"train\.tsv, line 10: expected 5 columns \(Quality, .*\), got 4"
    ):
        read_split(TASKS["MRPC"], tmp_path, "train")


def test_broken_rows_of_qqp_are_all_named(tmp_path: Path):
    """The real train.tsv has rows split in two by a newline inside a question."""
    path = write_task(tmp_path, "QQP") / "train.tsv"
    edit(path, 3, "column 0", "column\n0")
    edit(path, 7, "column 1 .", "column\t1 .")
    with pytest.raises(ValueError, match=r"line 3: expected 6 columns .* got 4") as caught:
        read_split(TASKS["QQP"], tmp_path, "train")
    message = str(caught.value)
    assert "Broken rows: 3 (line 3, 4, 7)" in message
    assert "mend or delete these lines, or leave out data_dir" in message


def test_many_broken_rows_are_counted(tmp_path: Path):
    path = write_task(tmp_path, "RTE") / "dev.tsv"
    path.write_text("index\tsentence1\tsentence2\tlabel\n" + "x\n" * 30, encoding="utf-8")
    with pytest.raises(ValueError, match=r"Broken rows: 30 \(line 2, .*, 21 and 10 more\)"):
        read_split(TASKS["RTE"], tmp_path, "dev")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("RTE", "not_entailment", "maybe", r"label 'maybe' is not one of \['entailment', 'not_ent"),
        ("MNLI", "\tneutral", "\t-", "label '-' is not one of .*'contradiction'"),
        ("SST-2", "\t0", "\t2", r"label '2' is not one of \['0', '1'\]"),
        ("CoLA", "\t0\t", "\t\t", r"label '' is not one of"),
        ("STS-B", "5.000", "high", "column 'score' holds 'high', expected a finite number"),
        ("STS-B", "5.000", "nan", "column 'score' holds 'nan', expected a finite number"),
        ("STS-B", "5.000", "", "column 'score' holds '', expected a finite number"),
        ("STS-B", "5.000", "5.001", "score 5.001 is outside 0 to 5"),
        ("STS-B", "5.000", "-1", "score -1 is outside 0 to 5"),
    ],
)
def test_a_wrong_label(tmp_path: Path, name: str, old: str, new: str, message: str):
    path = write_task(tmp_path, name) / "train.tsv"
    line = 1 if name == "CoLA" else 2
    edit(path, line, old, new)
    with pytest.raises(ValueError, match=message) as caught:
        read_split(TASKS[name], tmp_path, "train")
    assert f"{path}, line {line}: " in str(caught.value)


def test_a_missing_column(tmp_path: Path):
    path = write_task(tmp_path, "MNLI") / "train.tsv"
    edit(path, 1, "gold_label", "gold")
    with pytest.raises(
        ValueError, match=r"train\.tsv, line 1: no column 'gold_label'; the columns are \['index'"
    ):
        read_split(TASKS["MNLI"], tmp_path, "train")
    edit(path, 1, "gold", "sentence1")
    with pytest.raises(ValueError, match="line 1: more than one column 'sentence1'"):
        read_split(TASKS["MNLI"], tmp_path, "train")


@pytest.mark.parametrize("content", ["", "sentence\tlabel\n"])
def test_an_empty_dev_set(tmp_path: Path, content: str):
    path = write_task(tmp_path, "SST-2") / "dev.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"an empty dev set: .*dev\.tsv holds no rows"):
        load_task(TASKS["SST-2"], tmp_path)


def test_a_file_in_another_encoding(tmp_path: Path):
    path = write_task(tmp_path, "SST-2") / "dev.tsv"
    path.write_bytes("sentence\tlabel\nplain\t0\nnaïve\t1\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"dev\.tsv, line 3: not UTF-8 \(.* at byte 3 of the line"):
        read_split(TASKS["SST-2"], tmp_path, "dev")


def test_blank_texts_of_glue_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = write_task(tmp_path, "SST-2", dev=3)
    edit(folder / "dev.tsv", 3, text(1, 0), " ")
    assert read_split(TASKS["SST-2"], tmp_path, "dev")["text_a"][1] == " "
    assert f"{folder / 'dev.tsv'}, line 3: column 'sentence' is blank" in caplog.text


# A user's own files

TEXTS = ['two\nlines, a comma and a "quote"', "a separator\u2028here", "tab\there", "plain, \r\n x"]


def own(folder: Path, suffix: str, **changes: object) -> Task:
    entry: dict[str, object] = {
        "text": "review",
        "label": "stars",
        "labels": [1, 2],
        "splits": {"train": f"train{suffix}", "dev": f"dev{suffix}"},
    }
    path = folder / "own.yaml"
    path.write_text(json.dumps(entry | changes), encoding="utf-8")
    return get_task(path)


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
    task = own(folder if where == "beside the entry" else tmp_path, suffix)
    for split in ("train", "dev"):
        write_own(folder / f"{split}{suffix}")
    data = load_task(task, folder if where == "data_dir" else None)
    assert data["train"].to_dict() == {"text_a": TEXTS, "label": [0, 1, 0, 1]}
    assert data["dev"].to_dict() == data["train"].to_dict()


def test_own_tsv_without_a_header(tmp_path: Path):
    task = own(tmp_path, ".tsv", labels=None, columns=["stars", "review"])
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text('1.5\ta "b\n-7\tc\n', encoding="utf-8")
    assert load_task(task)["dev"].to_dict() == {"text_a": ['a "b', "c"], "label": [1.5, -7.0]}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.csv", "id,stars\n", r"line 1: no column 'review'; the columns are \['id', 'stars'\]"),
        ("a.csv", "review;stars\nx;1\n", "line 1: no column 'review'"),
        ("a.csv", 'review,stars\n"a\nb",1\nc,3\n', "line 4: label '3' is not one of"),
        ("a.csv", 'review,stars\n"a\nb",1\n\nc\n', "line 5: expected 2 columns .* got 1"),
        ("a.csv", 'review,stars\nx,1\n"a,1\nb,1\n', "line 3: unexpected end of data"),
        ("a.csv", 'review,stars\n"a" b,1\n', "line 2: .*a quote inside a field is written twice"),
        ("a.jsonl", '{"review": "x", "stars": 1}\n{"review": "x"}\n', "line 2: no column 'stars'"),
        ("a.jsonl", '{"review": "x", "stars": 1}\n\n{"review":\n', "line 3: not JSON .*one object"),
        ("a.jsonl", '{"review": 5, "stars": 1}\n', "line 1: column 'review' holds 5, expected a t"),
        ("a.jsonl", '{"review": "\\ud83d", "stars": 1}\n', "line 1: .*holds half a character"),
        ("a.csv", "review,stars\nx,1\n  ,2\n,2\n", "line 3: column 'review' is blank, and 1 more"),
        ("a.jsonl", '{"review": "", "stars": 1}\n', "line 1: column 'review' is blank; fill it"),
        ("a.jsonl", '{"review": "x", "stars": null}\n', "line 1: label 'null' is not one of"),
        ("a.jsonl", '{"review": "x", "stars": true}\n', "line 1: label 'true' is not one of"),
        ("a.jsonl", "3\n", "line 1: expected an object, got int"),
        ("a.json", '[{"review": "x", "stars": 1}, []]', "record 2: expected an object, got list"),
        ("a.json", '[{"review": "x", "stars": 1},\n', "line 2: not JSON"),
        ("a.json", "[]", "an empty dev set"),
        ("a.jsonl", "", "an empty dev set"),
        ("a.csv", "", "an empty dev set"),
        ("a.txt", "x\n", r"a\.txt: expected a file \.tsv, \.csv, \.json or \.jsonl"),
    ],
)
def test_what_is_wrong_with_an_own_file(tmp_path: Path, file: str, content: str, message: str):
    path = tmp_path / file
    path.write_text(content, encoding="utf-8")
    task = own(tmp_path, "", splits={"train": file, "dev": file})
    with pytest.raises(ValueError, match=message) as caught:
        read_split(task, None, "dev")
    assert str(path) in str(caught.value)


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


def test_without_a_network_the_error_names_data_dir(tmp_path: Path):
    code = "from glue.data import load_task; from glue.tasks import TASKS; load_task(TASKS['RTE'])"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "ConnectionError: could not get RTE from the hub's data set nyu-mll/glue"
    )
    assert "give data_dir: the folder of the GLUE download" in last
    assert "data_dir/RTE/train.tsv" in last.replace(os.sep, "/")

"""Texts and their labels: files of one's own, tasks of GLUE, a set that `datasets` reads."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, disable_progress_bars
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from experiments.multilabel.data.config import TextConfig
from experiments.multilabel.data.text import load_text
from tests.experiments.multilabel.tiny import TABLE, labels_of, tiny_bert
from tests.glue.make_glue import write_task

disable_progress_bars()
LABELS = [[1, 0], [0, 0], [1, 1]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_bert(tmp_path_factory.mktemp("tiny-bert")))


@pytest.fixture
def config(tmp_path: Path, model: str) -> TextConfig:
    """A folder of one's own with two files."""
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").write_text(TABLE)
    return TextConfig("folder", model, dataset="own", data_dir=str(tmp_path), max_length=32)


def words(config: TextConfig, rows: Any) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    return [
        tokenizer.decode(rows[i]["input_ids"], skip_special_tokens=True) for i in range(len(rows))
    ]


def test_a_column_for_each_label(config: TextConfig) -> None:
    data = load_text(config)
    assert data.labels == ("sad", "glad")
    assert labels_of(data.train) == labels_of(data.validation) == LABELS
    assert data.test is data.validation
    assert words(config, data.train) == ["one, two", 'said " no "', "three"]


def test_a_test_file_is_a_part(config: TextConfig, tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text(TABLE)
    assert labels_of(load_text(config).test) == LABELS


def test_one_column_of_joined_labels(config: TextConfig, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").unlink()
        rows = ["id\ttext\tmood", '1\tsaid "no\tsad', "2\tfour\t", "3\tfive\tglad; sad"]
        (tmp_path / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    config = replace(config, label_column="mood", separator=";")
    data = load_text(config)
    assert data.labels == ("glad", "sad")
    assert labels_of(data.train) == [[0, 1], [0, 0], [1, 1]]
    assert words(config, data.train)[0] == 'said " no'


@pytest.mark.parametrize("column", [None, "mood"])
def test_json_lines(config: TextConfig, tmp_path: Path, column: str | None) -> None:
    rows: list[dict[str, Any]] = [{"text": "a"}, {"text": "b\u2028c"}, {"text": "d"}]
    for row, (sad, glad) in zip(rows, LABELS, strict=True):
        named = [name for name, bit in (("sad", sad), ("glad", glad)) if bit]
        row |= {"sad": sad, "glad": bool(glad)} if column is None else {column: named}
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").unlink()
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = load_text(replace(config, label_column=column))
    expected = LABELS if column is None else [row[::-1] for row in LABELS]
    assert data.labels == (("sad", "glad") if column is None else ("glad", "sad"))
    assert labels_of(data.train) == expected


def test_pairs_of_texts(config: TextConfig, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").write_text("premise,claim,true,new\nab,c,1,0\nd,e,0,1\n")
    data = load_text(replace(config, text=["premise", "claim"]))
    assert data.labels == ("true", "new")
    # [CLS] a ##b [SEP] c [SEP]
    assert data.train[0]["token_type_ids"].tolist() == [*[0] * 4, 1, 1]


def test_a_task_of_glue_has_one_label_a_row(tmp_path: Path, model: str) -> None:
    write_task(tmp_path, "SST-2", train=40, dev=5)
    config = TextConfig("glue", model, data_dir=str(tmp_path), dataset="sst2", max_length=32)
    data = load_text(config)
    assert data.labels == ("0", "1")
    assert (len(data.train), len(data.validation), len(data.test)) == (36, 4, 5)
    assert labels_of(data.test) == [[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]]
    assert all(sum(row) == 1 for row in labels_of(data.train) + labels_of(data.validation))
    assert len(load_text(replace(config, train_rows=20)).train) == 18


def test_a_pair_task_of_glue(tmp_path: Path, model: str) -> None:
    write_task(tmp_path, "MNLI", train=20, dev=3)
    config = TextConfig("glue", model, data_dir=str(tmp_path), dataset="MNLI", max_length=32)
    data = load_text(config)
    assert data.labels == ("entailment", "neutral", "contradiction")
    assert len(data.test) == 3
    assert data.test[0]["token_type_ids"].max() == 1


def test_a_data_set_of_the_hub(tmp_path: Path, model: str) -> None:
    rows = Dataset.from_dict({"title": ["a", "b", "c"], "tags": [["x"], [], ["y", "x"]]})
    for split in ("train", "test"):
        rows.to_parquet(tmp_path / f"{split}.parquet")
    options: dict[str, Any] = {"text": ["title"], "label_column": "tags", "max_length": 32}
    data = load_text(
        TextConfig("hub", model, dataset=str(tmp_path), validation_split="test", **options)
    )
    assert data.labels == ("x", "y")
    assert labels_of(data.train) == labels_of(data.validation) == [[1, 0], [0, 0], [1, 1]]


def test_batches_are_padded_and_labelled(config: TextConfig) -> None:
    data = load_text(config)
    batch = next(iter(DataLoader(data.train, batch_size=3, collate_fn=data.collate)))
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask", "labels"}
    lengths = batch["attention_mask"].sum(-1)
    assert lengths.tolist() == data.lengths
    assert batch["input_ids"].shape == (3, lengths.max())
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].tolist() == LABELS


def test_texts_are_cut_off(config: TextConfig) -> None:
    data = load_text(replace(config, max_length=4))
    assert max(data.lengths or ()) == 4


def test_train_rows_are_the_same_ones_every_time(config: TextConfig, tmp_path: Path) -> None:
    lines = [f"{'ab'[i % 2]} {i},{i % 2}" for i in range(50)]
    (tmp_path / "train.csv").write_text("text,odd\n" + "\n".join(lines) + "\n")
    (tmp_path / "validation.csv").write_text("text,odd\na 1,1\n")
    some = replace(config, train_rows=20)
    first, again = (load_text(some).train for _ in range(2))
    assert words(config, first) == words(config, again)
    assert len(set(words(config, first))) == 20
    for row in range(20):  # text and labels stay together
        assert first[row]["labels"].item() == ("b" in words(config, first)[row])

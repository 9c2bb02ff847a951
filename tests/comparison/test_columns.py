"""Files whose columns have other names, and labelled files for a classifier."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sparse_attn.comparison.data import read_data, read_long_text
from sparse_attn.comparison.options import Options
from sparse_attn.comparison.reader import open_reader
from tests.comparison.running import Models, compared, parse, texts

TEXTS = texts(60)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A CSV with columns a, b, number and word."""
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "number", "word"])
        writer.writerows([t, f"{t} b", n / 8, n % 2] for n, t in enumerate(TEXTS))
    return path


def given(*words: Any) -> Options:
    return parse(["model", *map(str, words)])


def test_texts_and_pairs(table: Path) -> None:
    assert read_data(given("--texts", table, "--text_columns", "b")).inputs == [
        (f"{text} b",) for text in TEXTS
    ]
    both = read_data(given("--texts", table, "--text_columns", "a, b"))
    assert both.inputs == [(text, f"{text} b") for text in TEXTS]
    columns = ["--text_columns", "a,b", "--label_column", "number"]
    pairs = read_data(given("--pairs", table, *columns))
    assert pairs.inputs == [*((t,) for t in TEXTS), *((f"{t} b",) for t in TEXTS)]
    assert pairs.labels is not None
    assert pairs.labels.values.tolist() == [n / 8 for n in range(len(TEXTS))]
    assert read_long_text(table, ("a",))[0] == "\n\n".join(TEXTS)


def test_a_labelled_file_is_a_task(models: Models, table: Path) -> None:
    columns = ["--text_columns", "a,b", "--label_column", "word"]
    data = read_data(given("--task", table, *columns))
    assert data.source == f"{table.parent.name}/table.csv"
    assert data.inputs == [(text, f"{text} b") for text in TEXTS]
    assert data.labels is not None
    assert np.array_equal(data.labels.values, [n % 2 for n in range(len(TEXTS))])
    record = compared(
        models.classifier, "--task", table, *columns, "--mappings", "entmax:alpha=1.5"
    )
    assert record["metric"] == "accuracy"
    assert "--text_columns a,b --label_column word" in record["command"]


def test_a_file_may_lack_a_class(models: Models, table: Path, tmp_path: Path) -> None:
    columns = ["--text_columns", "a,b", "--label_column", "word"]
    labels: dict[str, Any] = {"id2label": {0: "1", 1: "none", 2: "0"}, "num_labels": 3}
    AutoModelForSequenceClassification.from_pretrained(
        models.classifier, ignore_mismatched_sizes=True, **labels
    ).save_pretrained(tmp_path / "three")
    AutoTokenizer.from_pretrained(models.classifier).save_pretrained(tmp_path / "three")
    data = read_data(given("--task", table, *columns))
    reader = open_reader(str(tmp_path / "three"), task=data.task)
    assert reader.order == [2, 0, 1]
    assert data.labels is not None
    ones = torch.tensor([1.0, 0.0, 0.0])[reader.order].expand(len(TEXTS), -1)
    assert data.labels.score(ones) == 0.5

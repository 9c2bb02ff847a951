"""Labels of a model and of a task are matched by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, PretrainedConfig

from glue.model import load_model
from sparse_attn.evaluation.labels import class_order, with_all_labels
from sparse_attn.evaluation.tasks import TASKS
from tests.glue.make_glue import own_task

MNLI = ["contradiction", "neutral", "entailment"]  # the order of roberta-large-mnli


def named(names: Any) -> PretrainedConfig:
    return PretrainedConfig(id2label=dict(enumerate(names)))


def classifier(folder: Path, tiny_model: Path, names: list[Any]) -> Path:
    labels = {"id2label": dict(enumerate(names)), "num_labels": len(names)}
    model = AutoModelForSequenceClassification.from_pretrained(
        tiny_model, ignore_mismatched_sizes=True, **labels
    )
    torch.nn.init.normal_(model.classifier.bias)
    model.save_pretrained(folder / "named")
    return folder / "named"


@pytest.mark.parametrize(
    ("task", "names", "expected"),
    [
        (["LABEL_1", "LABEL_0"], ["LABEL_0", "LABEL_1"], [1, 0]),  # names of the user's own
        (["a", "A"], ["A", "a"], [1, 0]),
        ("MNLI", MNLI, [2, 1, 0]),
        ("MNLI", [name.upper() for name in MNLI], [2, 1, 0]),
        ("MNLI", MNLI[::-1], None),
        ("MNLI", ["LABEL_0", "LABEL_1", "LABEL_2"], None),
        ("SST-2", ["NEGATIVE", "POSITIVE"], None),
        ("SST-2", ["POSITIVE", "NEGATIVE"], [1, 0]),
        ("MRPC", ["1", "0"], [1, 0]),
        ("STS-B", ["similarity"], None),
    ],
)
def test_classes_are_matched_by_name(
    task: str | list[str], names: list[Any], expected: list[int], tmp_path: Path
) -> None:
    asked = TASKS[task] if isinstance(task, str) else own_task(tmp_path, ".csv", labels=task)
    assert class_order(named(names), asked, "model") == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["C", "B", "A"], ("a", "b", "C")),
        (["b", "a"], ("a", "b")),
        (["x", "b", "c"], ("a", "b")),
        (["LABEL_0", "LABEL_1", "LABEL_2"], ("a", "b")),
        (["a", "b", "c", "C"], ("a", "b")),
    ],
)
def test_labels_of_a_file_that_lacks_some(
    names: list[Any], expected: tuple[str, ...], tmp_path: Path
) -> None:
    task = own_task(tmp_path, ".csv", labels=["a", "b"])
    assert with_all_labels(task, named(names)).labels == expected


def test_names_in_label2id_only() -> None:
    config = named(["LABEL_0", "LABEL_1"])
    config.label2id = {"positive": 0, "negative": 1}
    assert class_order(config, TASKS["SST-2"], "model") == [1, 0]


def test_a_kept_head_is_put_into_the_order_of_the_task(tiny_model: Path, tmp_path: Path) -> None:
    folder = classifier(tmp_path, tiny_model, MNLI)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ours = load_model(str(folder), TASKS["MNLI"]).eval()
    ids = torch.tensor([[2, 7, 9, 3]])
    with torch.no_grad():
        expected = theirs(ids).logits[0]
        found = ours(ids).logits[0]
    assert ours.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}
    by_name = [expected[MNLI.index(ours.config.id2label[i])] for i in range(3)]
    assert found.tolist() == [float(value) for value in by_name]


def test_another_tasks_labels_are_an_error(tiny_model: Path, tmp_path: Path) -> None:
    folder = classifier(tmp_path, tiny_model, ["negative", "positive"])
    says = r"model='.*named': names its labels \['negative', 'positive'\], but RTE has "
    with pytest.raises(ValueError, match=says + r"\['entailment', 'not_entailment'\]; "):
        load_model(str(folder), TASKS["RTE"])


@pytest.mark.parametrize(("lost", "task"), [("head", "RTE"), ("bias", "RTE"), ("size", "MNLI")])
def test_a_new_head_takes_the_tasks_labels(
    lost: str, task: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = classifier(tmp_path, tiny_model, ["negative", "positive"])
    weights = load_file(folder / "model.safetensors")
    gone = {"head": ["classifier.weight", "classifier.bias"], "bias": ["classifier.bias"]}
    for name in gone.get(lost, []):
        del weights[name]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    model = load_model(str(folder), TASKS[task])
    assert model.config.id2label[0] == "entailment"

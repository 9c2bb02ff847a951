"""Runs of a second, and what they need: models of a moment, data sets of a few rows."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
)

from experiments.multilabel.__main__ import EXPERIMENT
from experiments.multilabel.config import MethodConfig, MultilabelRunConfig, TrainConfig
from experiments.multilabel.data.config import ImageConfig, SyntheticConfig

DATA = SyntheticConfig(classes=4, labels=2, length=100, rows=240, features=12, hidden=8)
METHODS = {
    "softmax": MethodConfig(thresholds=[0.05, 0.1, 0.15, 0.2, 0.3]),
    "sparsemax-huber": MethodConfig("sparsemax", loss="sparsemax"),
    "sparsemax-hinge": MethodConfig("sparsemax", loss="sparsegen-hinge"),
    "sparsehourglass": MethodConfig("sparsehourglass"),
    "r-softmax": MethodConfig("r-softmax", sparsity="predicted"),
    "t-softmax": MethodConfig("t-softmax", params={"t": 1.0}, learn=["t"]),
    "entmax": MethodConfig("entmax", params={"alpha": 1.5}),
    "sigmoid": MethodConfig("sigmoid", thresholds=[0.3, 0.5]),
}
# a column of text and one for each of two labels
TABLE = 'text,sad,glad\n"one, two",1,0\n"said ""no""",0,0\nthree,1,1\n'


def run_config(folder: Path, method: str = "softmax", **train: Any) -> MultilabelRunConfig:
    """Three epochs into folder/run."""
    settings = {"epochs": 3, "batch_size": 50, "learning_rate": 0.01, "device": "cpu", **train}
    return MultilabelRunConfig(
        output_dir=str(folder / "run"),
        synthetic=DATA,
        method=METHODS[method],
        train=TrainConfig(**settings),
    )


def train(config: MultilabelRunConfig) -> dict[str, Any]:
    """A run as the command `train` does it."""
    results = EXPERIMENT.train(config, EXPERIMENT.prepare(config))
    assert results is not None
    return results


def labels_of(rows: Any) -> list[list[float]]:
    return [rows[i]["labels"].tolist() for i in range(len(rows))]


def tiny_bert(folder: Path) -> Path:
    """A BERT that reads letters: weights and tokenizer in a folder; 64 positions."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'\""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,  # for hidden states that tell texts apart
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def tiny_resnet(folder: Path) -> Path:
    """A ResNet with two stages: weights in a folder, for hidden states of 16."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ResNetForImageClassification(config).save_pretrained(folder)
    return folder


def paint(
    file: Path, colour: tuple[int, int, int] = (255, 0, 0), size: tuple[int, int] = (6, 4)
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)


def write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content if isinstance(content, str) else json.dumps(content))


def voc(folder: Path, splits: dict[str, dict[str, list[str]]]) -> ImageConfig:
    """VOCdevkit of these splits: image -> names of its objects; a name ending in ? is difficult."""
    root = folder / "VOCdevkit" / "VOC2007"
    for split, images in splits.items():
        write(root / "ImageSets" / "Main" / f"{split}.txt", "".join(f"{k}\n" for k in images))
        for key, names in images.items():
            objects = "".join(
                f"<object><name>{name.rstrip('?')}</name><difficult>{int(name[-1] == '?')}"
                "</difficult><part><name>head</name></part></object>"
                for name in names
            )
            write(root / "Annotations" / f"{key}.xml", f"<annotation>{objects}</annotation>")
            paint(root / "JPEGImages" / f"{key}.jpg")
    return ImageConfig("voc2007", data_dir=str(folder))


def coco(folder: Path, shown: dict[str, list[list[int]]]) -> ImageConfig:
    """Annotations and images of these splits: the category ids of each image's objects."""
    for split, images in shown.items():
        content = {
            "images": [{"id": 7 * i, "file_name": f"{i:012}.jpg"} for i in range(len(images))],
            "annotations": [
                {"image_id": 7 * i, "category_id": category}
                for i, categories in reversed(list(enumerate(images)))
                for category in categories
            ],
            "categories": [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}],
        }
        write(folder / "annotations" / f"instances_{split}2017.json", content)
        for i in range(len(images)):
            paint(folder / f"{split}2017" / f"{i:012}.jpg")
    return ImageConfig("coco2017", data_dir=str(folder))


def own(
    folder: Path, splits: Iterable[str] = ("train", "validation"), **options: Any
) -> ImageConfig:
    """A folder of three images a split, with a cat, nothing, and a cat and a dog."""
    for split in splits:
        write(folder / split / "labels.csv", "file,cat,dog\na.png,1,0\nb.png,0,0\nc.png,1,1\n")
        for name in "abc":
            paint(folder / split / f"{name}.png")
    return ImageConfig("folder", dataset="own", data_dir=str(folder), **options)

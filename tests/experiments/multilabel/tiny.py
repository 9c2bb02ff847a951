"""Runs of a second, and what they need: models of a moment, data sets of a few rows."""

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import ResNetConfig, ResNetForImageClassification

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


def write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


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
        write(folder / "annotations" / f"instances_{split}2017.json", json.dumps(content))
        for i in range(len(images)):
            paint(folder / f"{split}2017" / f"{i:012}.jpg")
    return ImageConfig("coco2017", data_dir=str(folder))

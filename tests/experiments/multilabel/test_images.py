"""Images and their labels as VOC and COCO distribute them, the network over them, and a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModel, AutoModelForImageClassification

from experiments.multilabel.config import MethodConfig, MultilabelRunConfig, TrainConfig
from experiments.multilabel.data.images import VOC_CLASSES, load_images, read_pixels
from experiments.multilabel.models import pretrained
from experiments.multilabel.run import load
from tests.experiments.multilabel.tiny import coco, paint, tiny_resnet, train, voc

PREDICTED = MethodConfig("r-softmax", sparsity="predicted")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_resnet(tmp_path_factory.mktemp("tiny-resnet")))


def labels_of(rows: Any) -> list[list[float]]:
    return [rows[i]["labels"].tolist() for i in range(len(rows))]


# Files


def test_voc_is_read_as_distributed(tmp_path: Path) -> None:
    config = voc(
        tmp_path,
        {
            "train": {"000012": ["car"], "000017": ["person", "horse", "person"]},
            "val": {"000005": ["chair?", "tvmonitor"]},
        },
    )
    data = load_images(config)
    assert data.labels == VOC_CLASSES
    assert len(data.labels) == 20
    assert data.test is data.validation
    found = [
        {name for name, bit in zip(data.labels, row, strict=True) if bit}
        for row in labels_of(data.train) + labels_of(data.validation)
    ]
    assert found == [{"car"}, {"person", "horse"}, {"chair", "tvmonitor"}]


def test_voc_test_images_are_a_part_where_they_are_there(tmp_path: Path) -> None:
    splits = {"train": {"1": ["cat"]}, "val": {"2": ["dog"]}, "test": {"3": ["cow"], "4": ["bus"]}}
    data = load_images(voc(tmp_path, splits))
    assert (len(data.train), len(data.validation), len(data.test)) == (1, 1, 2)


def test_coco_is_read_as_distributed(tmp_path: Path) -> None:
    data = load_images(coco(tmp_path, {"train": [[90, 90], [], [1, 90]], "val": [[1]]}))
    assert data.labels == ("person", "toothbrush")
    assert labels_of(data.train) == [[0, 1], [0, 0], [1, 1]]
    assert labels_of(data.validation) == [[1, 0]]
    assert data.test is data.validation


# Pixels


def test_pixels_are_scaled_and_normalised(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", (255, 0, 51), size=(300, 100))
    pixels = read_pixels(tmp_path / "a.png", 224)
    assert pixels.shape == (3, 224, 224)
    assert pixels.dtype == torch.float32
    expected = [(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    torch.testing.assert_close(pixels[:, 100, 17], torch.tensor(expected))


def test_the_picture_is_not_mirrored_or_turned(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:2, :4] = 255  # a bar, top left
    Image.fromarray(pixels).save(tmp_path / "a.png")
    bright = read_pixels(tmp_path / "a.png", 8)[0] > 0
    assert bright[:2, :4].all()
    assert bright.sum() == 8


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_every_kind_of_picture_has_three_channels(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (5, 5), "red").convert(mode).save(file, "tiff" if mode == "CMYK" else "png")
    assert read_pixels(file, 4).shape == (3, 4, 4)


# Networks


def test_a_resnet_gives_what_its_classifier_reads(folder: str) -> None:
    backbone, hidden = pretrained(folder)
    whole = AutoModelForImageClassification.from_pretrained(folder).eval()
    pixels = torch.randn(3, 3, 32, 32)
    found = backbone.eval()(pixels)
    assert found.shape == (3, hidden) == (3, 16)
    torch.testing.assert_close(whole.classifier(found), whole(pixels).logits)


def test_16_bits_are_cast_for_training(folder: str, tmp_path: Path) -> None:
    AutoModel.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(tmp_path)
    backbone, _ = pretrained(str(tmp_path))
    assert {weight.dtype for weight in backbone.parameters()} == {torch.float32}


def test_a_run(folder: str, tmp_path: Path) -> None:
    colours = {"r": (200, 0, 0), "g": (0, 200, 0), "rg": (200, 200, 0), "b": (0, 0, 200)}
    shown = {"r": ["car"], "g": ["bus"], "rg": ["car", "bus"], "b": ["cat"]}
    images = voc(tmp_path, {"train": shown, "val": shown})
    for name, colour in colours.items():
        paint(tmp_path / f"VOCdevkit/VOC2007/JPEGImages/{name}.jpg", colour)
    run = MultilabelRunConfig(
        images=replace(images, backbone=folder, size=32),
        output_dir=str(tmp_path / "run"),
        method=PREDICTED,
        train=TrainConfig(epochs=30, batch_size=4, learning_rate=0.01, device="cpu"),
    )
    results = train(run)
    assert (results["measured_on"], results["labels"]) == ("validation", list(VOC_CLASSES))
    assert results["score"] == results["f1"]["micro"] == 1
    assert run.images is not None
    data = load_images(run.images)
    batch = data.collate([data.validation[i] for i in range(4)])
    model = load(run.output_dir)
    with torch.no_grad():
        decided = model.head.decide(model(batch["inputs"]).logits)
    assert torch.equal(decided, batch["labels"].bool())

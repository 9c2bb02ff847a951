"""Images and their labels: VOC, COCO, a folder of one's own, a set that `datasets` reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, List, Value, disable_progress_bars
from PIL import Image as Pictures
from torch.utils.data import DataLoader

from experiments.multilabel.data.config import ImageConfig
from experiments.multilabel.data.images import VOC_CLASSES, load_images
from tests.experiments.multilabel.tiny import coco, labels_of, own, paint, voc

disable_progress_bars()


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


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    data = load_images(own(tmp_path, ("train", "validation", "test")))
    assert data.labels == ("cat", "dog")
    for rows in (data.train, data.validation, data.test):
        assert labels_of(rows) == [[1, 0], [0, 0], [1, 1]]


@pytest.mark.parametrize("kind", ["named", "numbers", "strings"])
def test_a_data_set_of_the_hub(tmp_path: Path, kind: str) -> None:
    inner = {"named": ClassLabel(names=["cat", "dog"]), "numbers": Value("int64")}
    features = Features({"image": Image(), "tags": List(inner.get(kind, Value("string")))})
    lists: list[list[Any]] = [[0], [], [1, 0]]
    if kind == "strings":
        lists = [["cat"], [], ["dog", "cat"]]
    pictures = [Pictures.new("RGB", (4, 4), "red")] * 3
    rows = Dataset.from_dict({"image": pictures, "tags": lists}, features=features)
    for split in ("train", "test"):
        rows.to_parquet(tmp_path / f"{split}.parquet")
    config = ImageConfig(
        "hub", dataset=str(tmp_path), label_column="tags", validation_split="test[:2]", size=8
    )
    data = load_images(config)
    assert data.labels == (("0", "1") if kind == "numbers" else ("cat", "dog"))
    assert labels_of(data.train) == [[1, 0], [0, 0], [1, 1]]
    assert labels_of(data.validation) == [[1, 0], [0, 0]]
    assert data.train[0]["inputs"].shape == (3, 8, 8)


def test_pixels_are_scaled_and_normalised(tmp_path: Path) -> None:
    config = own(tmp_path)
    paint(tmp_path / "train" / "a.png", (255, 0, 51), size=(300, 100))
    item = load_images(config).train[0]
    assert item["inputs"].shape == (3, 224, 224)
    assert item["inputs"].dtype == item["labels"].dtype == torch.float32
    expected = [(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    torch.testing.assert_close(item["inputs"][:, 100, 17], torch.tensor(expected))


def test_the_picture_is_not_mirrored_or_turned(tmp_path: Path) -> None:
    config = own(tmp_path, size=8)
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:2, :4] = 255  # a bar, top left
    Pictures.fromarray(pixels).save(tmp_path / "train" / "a.png")
    image = load_images(config).train[0]["inputs"]
    bright = image[0] > 0
    assert bright[:2, :4].all()
    assert bright.sum() == 8


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_every_kind_of_picture_has_three_channels(tmp_path: Path, mode: str) -> None:
    config = own(tmp_path, size=4)
    file = tmp_path / "train" / "a.png"
    Pictures.new("RGB", (5, 5), "red").convert(mode).save(file, "tiff" if mode == "CMYK" else "png")
    item = load_images(config).train[0]
    assert item["inputs"].shape == (3, 4, 4)


def test_batches_of_worker_processes(tmp_path: Path) -> None:
    data = load_images(own(tmp_path, size=4))
    loader = DataLoader(data.train, batch_size=2, collate_fn=data.collate, num_workers=1)
    here = DataLoader(data.train, batch_size=2, collate_fn=data.collate)
    for there, batch in zip(loader, here, strict=True):
        assert there["inputs"].shape[1:] == (3, 4, 4)
        assert torch.equal(there["inputs"], batch["inputs"])
        assert torch.equal(there["labels"], batch["labels"])

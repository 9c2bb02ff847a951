"""Images and their labels: VOC, COCO, a folder of one's own, a set that `datasets` reads."""

import json
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

disable_progress_bars()
RED = (255, 0, 0)


def paint(file: Path, colour: tuple[int, int, int] = RED, size: tuple[int, int] = (6, 4)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Pictures.new("RGB", size, colour).save(file)


def write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def voc(folder: Path, splits: dict[str, dict[str, list[str]]]) -> Path:
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
    return folder


def coco(folder: Path, shown: dict[str, list[list[int]]]) -> Path:
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
    return folder


def own(folder: Path, test: bool = False) -> Path:
    for split in ("train", "validation", "test")[: 2 + test]:
        write(folder / split / "labels.csv", "file,cat,dog\na.png,1,0\nb.png,0,0\nc.png,1,1\n")
        for name in "abc":
            paint(folder / split / f"{name}.png")
    return folder


def own_config(folder: Path, **options: Any) -> ImageConfig:
    return ImageConfig("folder", dataset="own", data_dir=str(folder), **options)


def labels_of(rows: Any) -> list[list[float]]:
    return [rows[i]["labels"].tolist() for i in range(len(rows))]


def test_voc_is_read_as_distributed(tmp_path: Path) -> None:
    folder = voc(
        tmp_path,
        {
            "train": {"000012": ["car"], "000017": ["person", "horse", "person"]},
            "val": {"000005": ["chair?", "tvmonitor"]},
        },
    )
    data = load_images(ImageConfig("voc2007", data_dir=str(folder)))
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
    data = load_images(ImageConfig("voc2007", data_dir=str(voc(tmp_path, splits))))
    assert (len(data.train), len(data.validation), len(data.test)) == (1, 1, 2)


def test_coco_is_read_as_distributed(tmp_path: Path) -> None:
    folder = coco(tmp_path, {"train": [[90, 90], [], [1, 90]], "val": [[1]]})
    data = load_images(ImageConfig("coco2017", data_dir=str(folder)))
    assert data.labels == ("person", "toothbrush")
    assert labels_of(data.train) == [[0, 1], [0, 0], [1, 1]]
    assert labels_of(data.validation) == [[1, 0]]
    assert data.test is data.validation


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    data = load_images(own_config(own(tmp_path, test=True)))
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
    pictures = [Pictures.new("RGB", (4, 4), RED)] * 3
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
    folder = own(tmp_path)
    paint(folder / "train" / "a.png", (255, 0, 51), size=(300, 100))
    item = load_images(own_config(folder)).train[0]
    assert item["inputs"].shape == (3, 224, 224)
    assert item["inputs"].dtype == item["labels"].dtype == torch.float32
    expected = [(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    torch.testing.assert_close(item["inputs"][:, 100, 17], torch.tensor(expected))


def test_the_picture_is_not_mirrored_or_turned(tmp_path: Path) -> None:
    folder = own(tmp_path)
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:2, :4] = 255  # a bar, top left
    Pictures.fromarray(pixels).save(folder / "train" / "a.png")
    image = load_images(own_config(folder, size=8)).train[0]["inputs"]
    bright = image[0] > 0
    assert bright[:2, :4].all()
    assert bright.sum() == 8


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_every_kind_of_picture_has_three_channels(tmp_path: Path, mode: str) -> None:
    folder = own(tmp_path)
    file = folder / "train" / "a.png"
    Pictures.new("RGB", (5, 5), RED).convert(mode).save(file, "tiff" if mode == "CMYK" else "png")
    item = load_images(own_config(folder, size=4)).train[0]
    assert item["inputs"].shape == (3, 4, 4)


def test_batches_of_worker_processes(tmp_path: Path) -> None:
    data = load_images(own_config(own(tmp_path), size=4))
    loader = DataLoader(data.train, batch_size=2, collate_fn=data.collate, num_workers=1)
    here = DataLoader(data.train, batch_size=2, collate_fn=data.collate)
    for there, batch in zip(loader, here, strict=True):
        assert there["inputs"].shape[1:] == (3, 4, 4)
        assert torch.equal(there["inputs"], batch["inputs"])
        assert torch.equal(there["labels"], batch["labels"])


BAD_VOC = {
    "no folder": ("ImageSets/Main/train.txt", None, "no file .*train.txt; expected VOCdevkit/VOC2"),
    "no picture": ("JPEGImages/2.jpg", None, "2.jpg: there is no such image; 1 of 1 are missing"),
    "no annotation": ("Annotations/2.xml", None, "no file .*2.xml; expected an annotation"),
    "broken": ("Annotations/2.xml", "<annotation>", "2.xml: not XML"),
    "class": (
        "Annotations/2.xml",
        "<a><object><name>unicorn</name></object></a>",
        "2.xml: label 'unicorn' is not one of the 20: aeroplane, ",
    ),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD_VOC.values(), ids=list(BAD_VOC))
def test_what_is_wrong_with_voc(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    voc(tmp_path, {"train": {"1": ["cat"]}, "val": {"2": ["dog"]}})
    file = tmp_path / "VOCdevkit" / "VOC2007" / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_images(ImageConfig("voc2007", data_dir=str(tmp_path)))


def test_what_is_wrong_with_coco(tmp_path: Path) -> None:
    config = ImageConfig("coco2017", data_dir=str(coco(tmp_path, {"train": [[1]], "val": [[1]]})))
    file = tmp_path / "annotations" / "instances_val2017.json"
    content = json.loads(file.read_text())
    write(file, content | {"categories": [{"id": 1, "name": "person"}]})
    with pytest.raises(ValueError, match="expected the same categories in both files, got person,"):
        load_images(config)
    write(file, {"images": []})
    with pytest.raises(ValueError, match="got a file without 'annotations'"):
        load_images(config)
    write(file, "{")
    with pytest.raises(ValueError, match=r"instances_val2017.json: not JSON"):
        load_images(config)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"no file .*instances_val2017.json; expected"):
        load_images(config)


def test_a_folder_without_labels(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "a.png")
    message = r"images.data_dir: expected a file labels.csv or .*train, got a folder with a.png"
    with pytest.raises(FileNotFoundError, match=message):
        load_images(own_config(tmp_path))


BAD_TABLES = {
    "value": ("file,cat,dog\na.png,1,yes\n", "line 2: column 'dog' holds 'yes', expected 0 or 1"),
    "no labels": ("file\na.png\n", "expected a column for the file, then cat, dog; got file"),
    "others": ("file,cat,cow\na.png,1,0\n", "expected .* then cat, dog; got file, cat, cow"),
    "twice": ("file,cat,cat\na.png,1,0\n", "line 1: two columns have one name: file, cat, cat"),
    "short": ("file,cat,dog\na.png,1\n", r"line 2: expected 3 columns \(file, cat, dog\), got 2"),
    "no rows": ("file,cat,dog\n", "labels.csv: holds no rows"),
    "no picture": ("file,cat,dog\nz.png,1,0\n", "z.png: there is no such image"),
}


@pytest.mark.parametrize(("content", "message"), BAD_TABLES.values(), ids=list(BAD_TABLES))
def test_what_is_wrong_with_a_table(tmp_path: Path, content: str, message: str) -> None:
    write(own(tmp_path) / "validation" / "labels.csv", content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_images(own_config(tmp_path))


def test_a_file_that_is_no_picture(tmp_path: Path) -> None:
    folder = own(tmp_path)
    paint(folder / "train" / "a.png", size=(64, 64))
    whole = (folder / "train" / "a.png").read_bytes()
    data = load_images(own_config(folder))
    for content in (b"no picture", whole[: len(whole) // 2]):
        (folder / "train" / "a.png").write_bytes(content)
        with pytest.raises(ValueError, match=r"a.png: cannot be read as an image"):
            data.train[0]


def test_a_hub_without_a_network_or_column(tmp_path: Path) -> None:
    rows = Dataset.from_dict({"image": ["a"], "labels": [["cat"]], "one": ["cat"]})
    for split in ("train", "validation"):
        rows.to_parquet(tmp_path / f"{split}.parquet")
    cases: dict[str, dict[str, str]] = {
        "images.image_column=image: expected a column of images, got Value": {},
        "no column 'picture'; the columns are image, labels, one": {"image_column": "picture"},
        "column 'one': expected a list of names or numbers": {"label_column": "one"},
    }
    for message, options in cases.items():
        with pytest.raises(ValueError, match=message):
            load_images(ImageConfig("hub", dataset=str(tmp_path), **options))
    with pytest.raises(ConnectionError, match=r"could not get split 'train' of .* use source: fol"):
        load_images(ImageConfig("hub", dataset=str(tmp_path / "none")))


def test_what_is_wrong_with_the_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"images.data_dir=None: expected a folder"):
        ImageConfig("voc2007")
    with pytest.raises(ValueError, match=r"images.dataset=None: expected a name, which source=hub"):
        ImageConfig("hub", data_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"images.dataset=None: expected a name"):
        ImageConfig("folder", data_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"images.size=0: expected at least 1"):
        own_config(tmp_path, size=0)
    with pytest.raises(FileNotFoundError, match=r"images.data_dir=.*none: there is no such"):
        load_images(ImageConfig("folder", dataset="own", data_dir=str(tmp_path / "none")))

"""Images with any number of labels: VOC 2007, COCO 2017, your own folder, the hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from experiments.multilabel.data.base import Batch, LabelledData
from experiments.multilabel.data.config import ImageConfig
from experiments.multilabel.data.hub import read_hub
from experiments.multilabel.data.tables import (
    from_columns,
    from_names,
    given_folder,
    listed,
    read_splits,
)
from sparse_attn.evaluation.rows import read_text
from sparse_attn.system.paths import safe_join

Part = tuple[Sequence[Any], Tensor]  # files or decoded images, labels [N, n]
Parts = tuple[tuple[str, ...], dict[str, Part]]  # label names, splits

# mean and standard deviation of ImageNet by channel, as in pretraining
MEAN = torch.tensor([0.485, 0.456, 0.406])
DEVIATION = torch.tensor([0.229, 0.224, 0.225])
VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)


def load_images(config: ImageConfig) -> LabelledData:
    """Load the data set of the config.

    Raises:
        ValueError, OSError: missing or unreadable files or columns.
    """
    labels, parts = read_images(config)
    sets = {split: Images(*part, config.size) for split, part in parts.items()}
    return LabelledData(
        labels,
        train=sets["train"],
        validation=sets["validation"],
        test=sets.get("test", sets["validation"]),
        collate=default_collate,
    )


class Images(Dataset[Batch]):
    """Images decoded on access.

    "inputs" is float32 [3, size, size]: RGB in [0, 1], normalised by ImageNet's mean and standard
    deviation.

    Args:
        pictures: N files or Pillow images.
        labels: [N, n] 0/1.
        size: height and width.
    """

    def __init__(self, pictures: Sequence[Any], labels: Tensor, size: int) -> None:
        self.pictures = pictures
        self.labels = labels
        self.size = size

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        pixels = read_pixels(self.pictures[index], self.size)
        return {"inputs": pixels, "labels": self.labels[index]}


def read_pixels(picture: Any, size: int) -> Tensor:
    """[3, size, size] float32, resized bilinearly (ignoring the aspect ratio) and normalised.

    Raises:
        ValueError: not an image, or truncated.
    """
    # an extra of this project
    from PIL import Image

    try:
        image = Image.open(BytesIO(picture.read_bytes())) if isinstance(picture, Path) else picture
        image = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except OSError as error:
        raise ValueError(f"{picture}: cannot be read as an image ({error})") from error
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255  # [3, size, size]
    return (pixels - MEAN[:, None, None]) / DEVIATION[:, None, None]


def read_images(config: ImageConfig) -> Parts:
    """Return label names, and images and labels by split; raise the errors of `load_images`."""
    if config.source == "hub":
        return _read_hub(config)
    folder = given_folder(config.data_dir, "images.data_dir")
    readers = {"voc2007": read_voc, "coco2017": read_coco, "folder": read_folder}
    return readers[config.source](folder)


def read_voc(folder: Path) -> Parts:
    """Return the 20 classes, and images with their classes by split.

    A class applies if one of its objects is annotated, even as difficult. train and validation are
    the challenge's train and val; test is included if VOCtest is unpacked in the same folder.

    Args:
        folder: holds VOCdevkit/VOC2007 with ImageSets/Main, Annotations and JPEGImages.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: an annotation cannot be read or names another class.
    """
    root = folder / "VOCdevkit" / "VOC2007"
    parts: dict[str, Part] = {}
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        file = root / "ImageSets" / "Main" / f"{name}.txt"
        if split == "test" and not file.is_file():
            continue
        keys = _text(file, "VOCdevkit/VOC2007 as VOCtrainval_06-Nov-2007.tar unpacks it").split()
        files = [safe_join(root / "JPEGImages", f"{key}.jpg", str(file)) for key in keys]
        rows = [_voc_names(root / "Annotations" / f"{key}.xml") for key in keys]
        parts[split] = _existing(files), from_names(rows, VOC_CLASSES)
    return VOC_CLASSES, parts


def _voc_names(file: Path) -> tuple[str, set[str]]:
    try:
        root = ElementTree.fromstring(_text(file, "an annotation for every image of the split"))
    except ElementTree.ParseError as error:
        raise ValueError(f"{file}: not XML ({error})") from error
    return str(file), {thing.findtext("name", "") for thing in root.iter("object")}


def read_coco(folder: Path) -> Parts:
    """Return the classes by id, and images with their classes by split.

    Images without annotated objects are kept, without labels. There is no test part, because its
    labels are not public.

    Args:
        folder: holds annotations/instances_{train,val}2017.json, train2017 and val2017.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: annotations cannot be read, or the two files have different classes.
    """
    labels: dict[str, tuple[str, ...]] = {}
    parts: dict[str, Part] = {}
    for split, name in (("train", "train2017"), ("validation", "val2017")):
        content = _coco_file(folder, name)
        categories = sorted(content["categories"], key=lambda category: category["id"])
        labels[split] = tuple(category["name"] for category in categories)
        if labels[split] != labels["train"]:
            raise ValueError(
                f"{folder / 'annotations'}: expected the same categories in both files, got "
                f"{listed(labels['train'])} and {listed(labels[split])}"
            )
        names = {category["id"]: category["name"] for category in categories}
        shown: dict[int, set[str]] = {image["id"]: set() for image in content["images"]}
        for thing in content["annotations"]:
            shown[thing["image_id"]].add(names[thing["category_id"]])
        where = f"annotations of {name}"
        files = [safe_join(folder / name, image["file_name"], where) for image in content["images"]]
        rows = zip(map(str, files), shown.values(), strict=True)
        parts[split] = _existing(files), from_names(rows, labels[split])
    return labels["train"], parts


def _coco_file(folder: Path, split: str) -> dict[str, Any]:
    file = folder / "annotations" / f"instances_{split}.json"
    expected = "annotations as annotations_trainval2017.zip unpacks them"
    try:
        content = json.loads(_text(file, expected))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: not JSON ({error})") from error
    for key in ("images", "annotations", "categories"):
        if key not in content:
            raise ValueError(f"{file}: expected {expected}, got a file without {key!r}")
    return content


def read_folder(folder: Path) -> Parts:
    """Read your own images, with labels in a table in the same folder.

    Args:
        folder: holds train, validation and optionally test, each with images and a table `labels`
            (.csv, .tsv or .jsonl): the file name, then 0 or 1 for each label.

    Raises:
        FileNotFoundError: a table or an image is missing.
        ValueError: no label column, other columns than for training, or a value other than 0 and
            1.
    """
    stems = {split: folder / split / "labels" for split in ("train", "validation", "test")}
    parts: dict[str, Part] = {}
    labels: tuple[str, ...] = ()
    for split, (table, rows) in read_splits(stems, "images.data_dir").items():
        file, *names = rows[0][1]
        labels = labels or tuple(names)
        if not names or tuple(names) != labels:
            raise ValueError(
                f"{table}: expected a column for the file, then {listed(labels) or 'labels'}; got "
                f"{listed([file, *names])}"
            )
        files = [safe_join(table.parent, record[file], where) for where, record in rows]
        parts[split] = _existing(files), from_columns(rows, labels)
    return labels, parts


def _read_hub(config: ImageConfig) -> Parts:
    splits = {"train": config.train_split, "validation": config.validation_split}
    column = config.image_column
    labels, parts = read_hub(str(config.dataset), splits, [column], config.label_column)
    for rows, _ in parts.values():
        if not isinstance(rows.features[column], datasets.Image):
            raise ValueError(
                f"images.image_column={column}: expected a column of images, got "
                f"{rows.features[column]}"
            )
    return labels, {split: (rows[column], matrix) for split, (rows, matrix) in parts.items()}


def _existing(files: list[Path]) -> list[Path]:
    """Return the files; raise FileNotFoundError unless all exist."""
    folders = {file.parent for file in files}
    there = {folder: {path.name for path in folder.glob("*")} for folder in folders}
    missing = [file for file in files if file.name not in there[file.parent]]
    if missing:
        raise FileNotFoundError(
            f"{missing[0]}: no such image; {len(missing)} of {len(files)} are missing"
        )
    return files


def _text(file: Path, expected: str) -> str:
    if not file.is_file():
        raise FileNotFoundError(f"no such file: {file}; expected {expected}")
    return read_text(file)

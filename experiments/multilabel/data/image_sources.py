"""Where images and their labels come from: one reader for each source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import datasets
from torch import Tensor

from experiments.multilabel.data.config import ImageConfig
from experiments.multilabel.data.hub import read_hub
from experiments.multilabel.data.labels import from_columns, from_names
from experiments.multilabel.data.tables import find_table, listed, missing_table, read_table
from pipeline.paths import below

Part = tuple[Sequence[Any], Tensor]  # files, or images of a hub's column; their labels [N, n]
Parts = tuple[tuple[str, ...], dict[str, Part]]  # the labels, and the splits

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)


def read_images(config: ImageConfig) -> Parts:
    """The labels, and by split the images and their labels.

    Raises:
        ValueError, OSError: files or columns that are not there or cannot be read.
    """
    if config.source == "hub":
        return read_hub_images(config)
    folder = Path(str(config.data_dir))
    if not folder.is_dir():
        raise FileNotFoundError(f"images.data_dir={folder}: there is no such folder")
    readers = {"voc2007": read_voc, "coco2017": read_coco, "folder": read_folder}
    return readers[config.source](folder)


def read_voc(folder: Path) -> Parts:
    """The 20 classes, and by split the images and the classes that they show.

    A class counts if one of its objects is annotated, marked as difficult or not. Training and
    validation images are the challenge's train and val; those of test are a part of their own where
    VOCtest has been unpacked in the same place.

    Args:
        folder: holds VOCdevkit/VOC2007 with ImageSets/Main, Annotations and JPEGImages.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: an annotation cannot be read or names another class.
    """
    root = folder / "VOCdevkit" / "VOC2007"
    lists = {"train": "train", "validation": "val", "test": "test"}
    parts: dict[str, Part] = {}
    for split, name in lists.items():
        file = root / "ImageSets" / "Main" / f"{name}.txt"
        if split == "test" and not file.is_file():
            continue
        keys = _text(file, "VOCdevkit/VOC2007 as VOCtrainval_06-Nov-2007.tar unpacks it").split()
        files = [below(root / "JPEGImages", f"{key}.jpg", str(file)) for key in keys]
        rows = [_voc_names(root / "Annotations" / f"{key}.xml") for key in keys]
        parts[split] = _existing(files), from_names(rows, VOC_CLASSES)
    return VOC_CLASSES, parts


def read_coco(folder: Path) -> Parts:
    """The classes in the order of their ids, and by split the images and the classes they show.

    Images without an annotated object are there too, with no label. There is no test part: its
    labels have not been published.

    Args:
        folder: holds annotations/instances_{train,val}2017.json, train2017 and val2017.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: annotations cannot be read, or the two files have different classes.
    """
    folders = {"train": "train2017", "validation": "val2017"}
    contents = {split: _coco_file(folder, name) for split, name in folders.items()}
    names = {split: _coco_names(content) for split, content in contents.items()}
    if names["train"] != names["validation"]:
        raise ValueError(
            f"{folder / 'annotations'}: expected the same categories in both files, got "
            f"{listed([*names['train'].values()])} and {listed([*names['validation'].values()])}"
        )
    return tuple(names["train"].values()), {
        split: _coco_part(folder / name, contents[split], names[split])
        for split, name in folders.items()
    }


def read_folder(folder: Path) -> Parts:
    """Images of one's own and the labels in a table beside them.

    Args:
        folder: holds train, validation and, if there is one, test, each with images and a table
            `labels` (.csv, .tsv or .jsonl): the file in the first column, then 0 or 1 for each
            label.

    Raises:
        FileNotFoundError: a table or an image is missing.
        ValueError: no label column, other ones than the training images have, or a value that is
            neither 0 nor 1.
    """
    parts: dict[str, Part] = {}
    labels: tuple[str, ...] = ()
    for split in ("train", "validation", "test"):
        table = find_table(folder / split, "labels")
        if table is not None:
            rows = read_table(table)
            file, *names = rows[0][1]
            labels = labels or tuple(names)
            if not names or tuple(names) != labels:
                raise ValueError(
                    f"{table}: expected a column for the file, then {listed(labels) or 'labels'}; "
                    f"got {listed([file, *names])}"
                )
            files = [below(table.parent, record[file], where) for where, record in rows]
            parts[split] = _existing(files), from_columns(rows, labels)
        elif split != "test":
            raise FileNotFoundError(
                f"images.data_dir: {missing_table(folder / split, 'labels')}; images without "
                "labels cannot be learned from"
            )
    return labels, parts


def read_hub_images(config: ImageConfig) -> Parts:
    """Columns of images and of labels of a data set of the hub."""
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
    """The files, which are all there.

    Raises:
        FileNotFoundError: one is not.
    """
    folders = {file.parent for file in files}
    there = {folder: {path.name for path in folder.glob("*")} for folder in folders}
    missing = [file for file in files if file.name not in there[file.parent]]
    if missing:
        raise FileNotFoundError(
            f"{missing[0]}: there is no such image; {len(missing)} of {len(files)} are missing"
        )
    return files


def _text(file: Path, expected: str) -> str:
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}; expected {expected}")
    return file.read_text(encoding="utf-8")


def _voc_names(file: Path) -> tuple[str, set[str]]:
    try:
        root = ElementTree.fromstring(_text(file, "an annotation for every image of the split"))
    except ElementTree.ParseError as error:
        raise ValueError(f"{file}: not XML ({error})") from error
    return str(file), {thing.findtext("name", "") for thing in root.iter("object")}


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


def _coco_names(content: dict[str, Any]) -> dict[int, str]:
    categories = sorted(content["categories"], key=lambda category: category["id"])
    return {category["id"]: category["name"] for category in categories}


def _coco_part(folder: Path, content: dict[str, Any], names: dict[int, str]) -> Part:
    shown: dict[int, set[str]] = {image["id"]: set() for image in content["images"]}
    for thing in content["annotations"]:
        shown[thing["image_id"]].add(names[thing["category_id"]])
    where = f"annotations of {folder.name}"
    files = [below(folder, image["file_name"], where) for image in content["images"]]
    rows = [(str(file), shown[key]) for file, key in zip(files, shown, strict=True)]
    return _existing(files), from_names(rows, tuple(names.values()))

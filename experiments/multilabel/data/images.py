"""Images with any number of labels: VOC 2007 and COCO 2017 as they are distributed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from experiments.multilabel.data.base import Batch, LabelledData
from experiments.multilabel.data.config import ImageConfig
from sparse_attn.system.paths import safe_join

Parts = tuple[tuple[str, ...], dict[str, "Images"]]  # label names, splits

# mean and standard deviation of ImageNet by channel, as in pretraining
MEAN = torch.tensor([0.485, 0.456, 0.406])
DEVIATION = torch.tensor([0.229, 0.224, 0.225])
VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)


class Images(Dataset[Batch]):
    """Images decoded on access.

    "inputs" is float32 [3, size, size]: RGB in [0, 1], normalised by ImageNet's mean and standard
    deviation.

    Args:
        files: N image files.
        shown: the names of the labels of each.
        labels: names of the n labels.
        size: height and width.

    Raises:
        ValueError: a file does not exist.
    """

    def __init__(
        self, files: list[Path], shown: Iterable[set[str]], labels: Sequence[str], size: int
    ) -> None:
        if missing := [file for file in files if not file.exists()]:
            raise ValueError(f"{missing[0]}: missing, and {len(missing) - 1} more images")
        self.files = files
        self.size = size
        self.labels = torch.zeros(len(files), len(labels))  # [N, n] 0/1
        column = {label: number for number, label in enumerate(labels)}
        for row, names in enumerate(shown):
            for name in names:
                self.labels[row, column[name]] = 1

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Batch:
        return {"inputs": read_pixels(self.files[index], self.size), "labels": self.labels[index]}


def read_pixels(file: Path, size: int) -> Tensor:
    """[3, size, size] float32, resized bilinearly (ignoring the aspect ratio) and normalised.

    Raises:
        ValueError: not an image, or truncated.
    """
    # an extra of this project
    from PIL import Image

    try:
        image = Image.open(BytesIO(file.read_bytes())).convert("RGB")
    except OSError as error:
        raise ValueError(f"{file}: cannot be read as an image ({error})") from error
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255  # [3, size, size]
    return (pixels - MEAN[:, None, None]) / DEVIATION[:, None, None]


def load_images(config: ImageConfig) -> LabelledData:
    """Load the data set of the config.

    Raises:
        OSError, ValueError: a file is missing, or names an image outside the folder.
    """
    read = {"voc2007": read_voc, "coco2017": read_coco}[config.source]
    labels, parts = read(Path(config.data_dir), config.size)
    test = parts.get("test", parts["validation"])
    return LabelledData(labels, parts["train"], parts["validation"], test, default_collate)


def read_voc(folder: Path, size: int) -> Parts:
    """Return the 20 classes, and images with their classes by split.

    A class applies if one of its objects is annotated, even as difficult. train and validation are
    the challenge's train and val; test is included if VOCtest is unpacked in the same folder.

    Args:
        folder: holds VOCdevkit/VOC2007 with ImageSets/Main, Annotations and JPEGImages.
        size: height and width of the images.
    """
    root = folder / "VOCdevkit" / "VOC2007"
    parts = {}
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        listed = root / "ImageSets" / "Main" / f"{name}.txt"
        if split == "test" and not listed.is_file():
            continue
        keys = listed.read_text(encoding="utf-8").split()
        files = [safe_join(root / "JPEGImages", f"{key}.jpg", str(listed)) for key in keys]
        trees = (ElementTree.parse(root / "Annotations" / f"{key}.xml") for key in keys)
        shown = ({thing.findtext("name", "") for thing in tree.iter("object")} for tree in trees)
        parts[split] = Images(files, shown, VOC_CLASSES, size)
    return VOC_CLASSES, parts


def read_coco(folder: Path, size: int) -> Parts:
    """Return the classes by id, and images with their classes by split.

    Images without annotated objects are kept, without labels. There is no test part, because its
    labels are not public.

    Args:
        folder: holds annotations/instances_{train,val}2017.json, train2017 and val2017.
        size: height and width of the images.
    """
    labels: tuple[str, ...] = ()
    parts = {}
    for split, name in (("train", "train2017"), ("validation", "val2017")):
        file = folder / "annotations" / f"instances_{name}.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        names = {category["id"]: category["name"] for category in content["categories"]}
        labels = labels or tuple(names[number] for number in sorted(names))
        shown: dict[int, set[str]] = {image["id"]: set() for image in content["images"]}
        for thing in content["annotations"]:
            shown[thing["image_id"]].add(names[thing["category_id"]])
        files = [safe_join(folder / name, i["file_name"], str(file)) for i in content["images"]]
        parts[split] = Images(files, shown.values(), labels, size)
    return labels, parts

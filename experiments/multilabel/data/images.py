"""Images with any number of labels each: VOC 2007, COCO 2017, a folder of one's own, the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from experiments.multilabel.data.base import Batch, LabelledData
from pipeline.config import check_fields

# of ImageNet, over which the networks were trained: mean and standard deviation by channel
MEAN = torch.tensor([0.485, 0.456, 0.406])
DEVIATION = torch.tensor([0.229, 0.224, 0.225])


@dataclass(frozen=True)
class ImageConfig:
    """Images and a pretrained convolutional network.

    Args:
        source: voc2007 and coco2017: as distributed; folder: of one's own, train/labels.csv and
            validation/labels.csv (test/labels.csv too, if there is one) beside the images, first
            column the file and one 0/1 column for each label; hub: a data set of the hub.
        data_dir: the folder that holds VOCdevkit; annotations, train2017 and val2017; or train and
            validation.
        dataset: id of the hub's data set, or a folder that `datasets` reads; for a folder of one's
            own the name that tells its runs from those of another.
        image_column: of the hub's data set.
        label_column: of the hub's data set, a list of labels in each row.
        validation_split: of the hub's data set, such as validation, test or "train[90%:]".
        train_split: of the hub's data set.
        backbone: torchvision://resnet18 and the like, or hub id or folder of a Transformers model.
        weights: file of a state dict for a torchvision backbone; the pretrained ones if left out.
        size: height and width that every image is scaled to.
    """

    source: Literal["voc2007", "coco2017", "folder", "hub"]
    data_dir: str | None = None
    dataset: str | None = None
    image_column: str = "image"
    label_column: str = "labels"
    train_split: str = "train"
    validation_split: str = "validation"
    backbone: str = "torchvision://resnet18"
    weights: str | None = None
    size: int = 224

    def __post_init__(self) -> None:
        source = self.source
        named = self.dataset is not None or source in ("voc2007", "coco2017")
        check_fields(
            self,
            "images",
            dataset=(named, f"a name, which source={source} needs"),
            data_dir=(self.data_dir is not None or source == "hub", "a folder"),
            size=(self.size > 0, "at least 1"),
        )


class Images(Dataset[Batch]):
    """Images decoded when they are asked for.

    "inputs" is float32 [3, size, size]: RGB in [0, 1], then less mean and over standard deviation
    of ImageNet by channel.

    Args:
        pictures: N files, or images that Pillow has opened.
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
    """[3, size, size] float32, scaled by bilinear interpolation whatever the shape, normalised.

    Raises:
        ValueError: the file is not an image or is cut short.
    """
    from PIL import Image

    try:
        image = Image.open(BytesIO(picture.read_bytes())) if isinstance(picture, Path) else picture
        image = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except OSError as error:
        raise ValueError(f"{picture}: cannot be read as an image ({error})") from error
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255  # [3, size, size]
    return (pixels - MEAN[:, None, None]) / DEVIATION[:, None, None]


def load_images(config: ImageConfig) -> LabelledData:
    """The data set that the config describes.

    Raises:
        ValueError, OSError: files or columns that are not there or cannot be read.
    """
    # imports that a command's --help does not need
    from experiments.multilabel.data.image_sources import read_images

    labels, parts = read_images(config)
    sets = {split: Images(*part, config.size) for split, part in parts.items()}
    return LabelledData(
        labels,
        train=sets["train"],
        validation=sets["validation"],
        test=sets.get("test", sets["validation"]),
        collate=default_collate,
    )

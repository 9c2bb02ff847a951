"""Images with any number of labels each: VOC 2007, COCO 2017, a folder of one's own, the hub."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from experiments.multilabel.data.base import Batch, LabelledData
from experiments.multilabel.data.config import ImageConfig

# of ImageNet, over which the networks were trained: mean and standard deviation by channel
MEAN = torch.tensor([0.485, 0.456, 0.406])
DEVIATION = torch.tensor([0.229, 0.224, 0.225])


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

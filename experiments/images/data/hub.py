"""Reader of MNIST and CIFAR from the Hugging Face hub."""

from __future__ import annotations

import datasets
import numpy as np

from experiments.images.data import Arrays
from sparse_attn.system.hub import load_from_hub

# data set, column of the image, column of the class
SOURCES = {
    "mnist": ("ylecun/mnist", "image", "label"),
    "cifar10": ("uoft-cs/cifar10", "img", "label"),
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label"),
}


def read_hub(name: str) -> dict[str, Arrays]:
    """Training and test images: pixels [N, channels, height, width] and labels [N], uint8.

    Raises:
        ConnectionError: the hub cannot be reached and its cache has no copy.
    """
    source, image, label = SOURCES[name]
    parts = load_from_hub(source, what=f"data.name={name}", instead="give --data.data_dir")
    return {part: _arrays(parts[part], image, label) for part in ("train", "test")}


def _arrays(rows: datasets.Dataset, image: str, label: str) -> Arrays:
    """Pixels and labels of a `datasets.Dataset`; grey images have one channel."""
    columns = rows.with_format("numpy")[:]
    pixels = np.asarray(columns[image], np.uint8)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(pixels), np.asarray(columns[label], np.uint8)

"""The same data sets from the Hugging Face hub."""

from __future__ import annotations

import datasets
import numpy as np

from experiments.images.data import Arrays

# data set, column of the image, column of the class
SOURCES = {
    "mnist": ("ylecun/mnist", "image", "label"),
    "cifar10": ("uoft-cs/cifar10", "img", "label"),
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label"),
}


def read_hub(name: str) -> dict[str, Arrays]:
    """Training and test images: pixels [N, channels, height, width] and labels [N], uint8.

    Raises:
        OSError: the hub cannot be reached and its cache has no copy.
    """
    source, image, label = SOURCES[name]
    try:
        parts = datasets.load_dataset(source)
    except Exception as error:  # the hub's HTTP library, and so its errors, change by release
        raise OSError(
            f"data.name={name}: {source} could not be loaded from the hub ({type(error).__name__}: "
            f"{error}); give its files by --data.data_dir"
        ) from error
    return {part: _arrays(parts[part], image, label) for part in ("train", "test")}


def _arrays(rows: datasets.Dataset, image: str, label: str) -> Arrays:
    """What a `datasets.Dataset` holds, grey images with one channel."""
    columns = rows.with_format("numpy")[:]
    pixels = np.asarray(columns[image], np.uint8)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(pixels), np.asarray(columns[label], np.uint8)

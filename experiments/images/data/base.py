"""Load labelled images and split them into training, validation and test."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.images.config import CLASSES, DataConfig
from experiments.images.data import Arrays
from experiments.images.data.idx import read_mnist

# channels, height and width
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}


@dataclass(frozen=True)
class Images:
    """Images and their classes.

    Attributes:
        pixels: [N, channels, height, width], uint8.
        labels: [N], int64.
    """

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Images:
        """The images at these indices."""
        return Images(self.pixels[rows], self.labels[rows])

    def to(self, device: torch.device) -> Images:
        """Return the images on a device."""
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Splits:
    """Training, validation and test images.

    found: number of images split (distinct ones for a random split); shows if the folder has only
        some of a data set's files.
    """

    train: Images
    validation: Images
    test: Images
    found: int

    def sizes(self) -> dict[str, int]:
        """Return the number of images in each part and in total."""
        parts = ("train", "validation", "test")
        return {**{part: len(getattr(self, part)) for part in parts}, "found": self.found}


def load_splits(config: DataConfig, seed: int) -> Splits:
    """Read the images and split them by `seed`.

    Raises:
        ValueError: broken files, or fewer images than the parts need.
        OSError: missing files.
    """
    return cut(load_images(config), config, seed)


@lru_cache(maxsize=1)
def load_images(config: DataConfig) -> dict[str, Images]:
    """Return the available official parts, `train` and `test`, cached for later runs.

    Raises:
        ValueError, OSError: errors of `load_splits`, images of the wrong shape, unknown labels.
    """
    if config.data_dir is None:
        # datasets takes seconds to import
        from experiments.images.data.hub import read_hub

        arrays = read_hub(config.name)
    else:
        folder = Path(config.data_dir)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"data.data_dir={folder}: no such folder; expected one with the {config.name} "
                "files; leave it out to load from the hub"
            )
        read = read_mnist if config.name == "mnist" else read_cifar
        arrays = read(folder, config.name)
    for part, (pixels, labels) in arrays.items():
        _check(config.name, part, pixels, labels)
    return {
        part: Images(torch.from_numpy(pixels), torch.from_numpy(labels).long())
        for part, (pixels, labels) in arrays.items()
    }


def read_cifar(folder: Path, name: str) -> dict[str, Arrays]:
    """Read both parts by torchvision, which compares every file with its MD5 sum.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
        FileNotFoundError: a file is missing or broken.
    """
    # an extra of this project
    from torchvision import datasets  # type: ignore[import-not-found]

    reader = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    parts = {}
    for part in ("train", "test"):
        try:
            rows = reader(folder, train=part == "train")
        except RuntimeError as error:
            raise FileNotFoundError(
                f"data.data_dir={folder}: expected the folder {reader.base_folder} with the files "
                f"as distributed ({error}); unpack the archive again"
            ) from None
        pixels = np.ascontiguousarray(rows.data.transpose(0, 3, 1, 2))
        parts[part] = (pixels, np.asarray(rows.targets, np.uint8))
    return parts


def _check(name: str, part: str, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Raise ValueError for images or labels that the networks do not accept."""
    shape, classes = SHAPES[name], CLASSES[name]
    if not len(pixels) or pixels.shape[1:] != shape:
        raise ValueError(
            f"data: {name}'s {part} images are of shape {pixels.shape}, expected (N, "
            f"{', '.join(map(str, shape))}); is data.name right for these files?"
        )
    if labels.max() >= classes:
        raise ValueError(
            f"data: a label of {name}'s {part} images is {labels.max()}; expected 0 to "
            f"{classes - 1}; is data.name right for these files?"
        )


def cut(parts: dict[str, Images], config: DataConfig, seed: int) -> Splits:
    """Shuffle by `seed` and split.

    random: pool both parts, drop duplicates (which could land in training and test), shuffle and
    split into training, validation and test. official: keep the test set, and split the shuffled
    rest into training and validation.

    Raises:
        ValueError: fewer images than asked for, or no official test or training images.
    """
    if config.split == "official":
        missing = [part for part in ("train", "test") if part not in parts]
        if missing:
            raise ValueError(
                f"data.split=official: the {missing[0]} images of {config.name} are not in "
                f"data.data_dir={config.data_dir}; put their files there, or use split random"
            )
        train, validation = _shuffled(parts["train"], config, seed, config.validation)
        return Splits(train, validation, parts["test"], sum(map(len, parts.values())))
    whole = Images(
        torch.cat([images.pixels for images in parts.values()]),
        torch.cat([images.labels for images in parts.values()]),
    )
    single = whole.take(_first_copies(whole.pixels))
    train, validation, test = _shuffled(single, config, seed, config.validation, config.test)
    return Splits(train, validation, test, len(single))


def _first_copies(pixels: Tensor) -> Tensor:
    """Indices of the images [N, ...] without duplicates, first occurrences kept."""
    rows = pixels.flatten(1).contiguous().numpy()
    # a row as one value, so that unique compares rows
    _, first = np.unique(rows.view(f"V{rows.shape[1]}")[:, 0], return_index=True)
    return torch.from_numpy(np.sort(first))


def _shuffled(images: Images, config: DataConfig, seed: int, *held_out: int) -> list[Images]:
    """Shuffle by `seed`; return training images, then parts of the sizes `held_out`."""
    left = len(images) - sum(held_out)
    train = left if config.train is None else config.train
    if not 0 < train <= left:
        raise ValueError(
            f"data: {len(images):,} distinct images, less {sum(held_out):,} held out "
            f"(validation={config.validation}, test={config.test}), leave {max(left, 0):,} for "
            f"training, expected {config.train or 'at least 1'}; lower train, validation or test"
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    sizes = [train, *held_out]
    return [images.take(rows) for rows in order[: sum(sizes)].split(sizes)]

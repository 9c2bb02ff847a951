"""Small data sets in the layouts in which the real ones are distributed."""

import gzip
from pathlib import Path

import numpy as np

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
Arrays = tuple[np.ndarray, np.ndarray]


def digits(count: int, seed: int = 0) -> Arrays:
    """Noise [N, 28, 28] with one bright block, whose place is the class [N]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    images = rng.integers(0, 100, (count, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        top, left = 14 * (label // 5), 5 * (label % 5)
        image[top : top + 12, left : left + 5] = 250
    return images, labels


def colours(count: int, classes: int, seed: int = 0) -> Arrays:
    """Pixels [N, 3072] in the order of CIFAR, channel by channel, and classes [N]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count).astype(np.uint8)
    return rng.integers(0, 256, (count, 3072)).astype(np.uint8), labels


def idx(array: np.ndarray) -> bytes:
    """The array as an IDX file of unsigned bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_mnist(folder: Path, part: str, arrays: Arrays, zipped: bool = False) -> None:
    """Both files of a part."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(FILES[part], arrays, strict=True):
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))

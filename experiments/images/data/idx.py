"""Reader of MNIST as distributed: IDX files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from experiments.images.data import Arrays

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
UNSIGNED_BYTE = 8


def read_mnist(folder: Path, name: str) -> dict[str, Arrays]:
    """The parts found in the folder: pixels [N, 1, 28, 28] and labels [N], uint8.

    Raises:
        FileNotFoundError: no part found, or images without labels or vice versa.
        ValueError: a truncated or invalid file, or counts that differ.
    """
    parts = {}
    for part, (image_file, label_file) in FILES.items():
        found = [_find(folder, file) for file in (image_file, label_file)]
        images, labels = found
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            missing = image_file if images is None else label_file
            raise FileNotFoundError(
                f"data.data_dir={folder}: {missing} (or {missing}.gz) is missing beside "
                f"{(images or labels or folder).name}; expected both files of a part"
            )
        pixels, classes = read_idx(images, 3), read_idx(labels, 1)
        if len(pixels) != len(classes):
            raise ValueError(
                f"data.data_dir={folder}: {images.name} has {len(pixels):,} images, {labels.name} "
                f"{len(classes):,} labels; expected as many; download both again"
            )
        parts[part] = (pixels[:, None], classes)
    if not parts:
        expected = ", ".join(file for files in FILES.values() for file in files)
        raise FileNotFoundError(
            f"data.data_dir={folder}: no {name} files there; expected some of {expected}, gzipped "
            "or not"
        )
    return parts


def _find(folder: Path, file: str) -> Path | None:
    return next((p for p in (folder / file, folder / f"{file}.gz") if p.exists()), None)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read the array of an IDX file of unsigned bytes.

    The file has two zero bytes, a byte for the type, one for the number of dimensions, the sizes as
    big-endian 32-bit numbers, and the data. Source: yann.lecun.com/exdb/mnist.

    Raises:
        ValueError: a wrong magic number, or a byte count that does not match the sizes.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: not a whole gzip file ({error}); expected one as distributed; download it "
            "again"
        ) from None
    magic = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if content[:4] != magic:
        raise ValueError(
            f"{path}: starts with {content[:4].hex()}, expected the IDX magic number {magic.hex()} "
            f"of unsigned bytes in {dimensions} dimensions; download it again"
        )
    start = 4 + 4 * dimensions
    # a file truncated within its sizes has no data
    shape = [int(size) for size in np.frombuffer(content[4:start].ljust(start - 4, b"\0"), ">u4")]
    found = len(content) - start
    if found != math.prod(shape):
        raise ValueError(
            f"{path}: {max(found, 0):,} bytes of data, expected {math.prod(shape):,} for "
            f"{' x '.join(map(str, shape))}; the file is cut short or broken: download it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()

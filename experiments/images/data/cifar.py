"""Reader of CIFAR-10 and CIFAR-100 as distributed: Python or binary batches."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.images.data import Arrays

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
# raised for a file that is not a pickled batch
BROKEN = (
    *(EOFError, pickle.UnpicklingError, ValueError, TypeError, KeyError),
    *(AttributeError, ImportError, IndexError, OverflowError, MemoryError),
)


@dataclass(frozen=True)
class Layout:
    """File layout of CIFAR-10 or CIFAR-100.

    python, binary: names of the folders in the archives; batches: the files of each part, with the
    suffix .bin in the binary form; labels: key in a Python batch; label_bytes: bytes before the
    pixels of a binary row, the last of which is the class.
    """

    python: str
    binary: str
    batches: dict[str, tuple[str, ...]]
    labels: bytes
    label_bytes: int


LAYOUTS = {
    "cifar10": Layout(
        "cifar-10-batches-py",
        "cifar-10-batches-bin",
        {
            "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
            "test": ("test_batch",),
        },
        b"labels",
        1,
    ),
    "cifar100": Layout(
        "cifar-100-python",
        "cifar-100-binary",
        {"train": ("train",), "test": ("test",)},
        b"fine_labels",
        2,
    ),
}


def read_cifar(folder: Path, name: str) -> dict[str, Arrays]:
    """Read the parts in the folder, or in the unpacked archive below it.

    Returns:
        Pixels [N, 3, 32, 32] and labels [N], uint8, of each part with all its batches.

    Raises:
        FileNotFoundError: no part found, or a part with missing batches.
        ValueError: a truncated or invalid batch.
    """
    layout = LAYOUTS[name]
    folders = [f for f in (folder, folder / layout.python, folder / layout.binary) if f.is_dir()]
    parts = {}
    for part, batches in layout.batches.items():
        files = list(_find(folders, batches))
        if not files:
            continue
        if len(files) < len(batches):
            have = ", ".join(file.name for file in files)
            raise FileNotFoundError(
                f"data.data_dir={folder}: of {', '.join(batches)} found only {have}; expected "
                "all; unpack the archive again"
            )
        read = {".bin": _binary, "": _python}
        arrays = [read[file.suffix](file, layout) for file in files]
        pixels, labels = (np.concatenate(column) for column in zip(*arrays, strict=True))
        parts[part] = (pixels.reshape(-1, *SHAPE), labels)
    if not parts:
        raise FileNotFoundError(
            f"data.data_dir={folder}: no {name} files there; expected {layout.python} or "
            f"{layout.binary}, or the batches themselves ({layout.batches['train'][0]} and so on, "
            "or the same with .bin)"
        )
    return parts


def _find(folders: list[Path], batches: tuple[str, ...]) -> Iterator[Path]:
    """Yield the first existing file of each batch."""
    for batch in batches:
        for folder in folders:
            file = next((p for p in (folder / batch, folder / f"{batch}.bin") if p.is_file()), None)
            if file is not None:
                yield file
                break


def _binary(file: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Read pixels [N, 3072] and labels [N]."""
    content, row = np.fromfile(file, np.uint8), layout.label_bytes + PIXELS
    if not len(content) or len(content) % row:
        raise ValueError(
            f"{file}: {len(content):,} bytes, expected a multiple of {row:,} (labels and pixels of "
            "an image); the file is cut short or of the other CIFAR: unpack the archive again"
        )
    rows = content.reshape(-1, row)
    return rows[:, layout.label_bytes :], rows[:, layout.label_bytes - 1]


def _python(file: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    try:
        with file.open("rb") as stream:
            batch = _ArraysOnly(stream, encoding="bytes").load()
        pixels = np.asarray(batch[b"data"])
        labels = np.asarray(batch[layout.labels])
    except BROKEN as error:
        raise ValueError(
            f"{file}: no batch of {layout.python} ({type(error).__name__}: {error}); expected a "
            f"pickled dict with data and {layout.labels.decode()}: unpack the archive again"
        ) from None
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS):
        raise ValueError(
            f"{file}: data is {pixels.dtype} of shape {pixels.shape}, expected uint8 of shape "
            f"({len(labels)}, {PIXELS}), a row for each label: unpack the archive again"
        )
    return pixels, labels.astype(np.uint8)


class _ArraysOnly(pickle.Unpickler):
    """Unpickle plain values and numpy arrays only, so that a file cannot run code."""

    NEEDED = frozenset({("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")})

    def find_class(self, module: str, name: str) -> Any:
        # numpy 2 moved its array constructor; files name the old module
        array = module in ("numpy.core.multiarray", "numpy._core.multiarray")
        if (module, name) in self.NEEDED or (array and name == "_reconstruct"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch needs")

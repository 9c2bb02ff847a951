"""Files as they are distributed, the hub, the cut into parts, and what is wrong with them."""

import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from experiments.images.__main__ import main
from experiments.images.config import DataConfig
from experiments.images.data.base import Images, cut, load_images, load_splits
from tests.commands import refusal
from tests.experiments.images.making import colours, digits, write_mnist


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_give_the_images_that_were_written(tmp_path: Path, zipped: bool) -> None:
    train, test = digits(12), digits(5, seed=1)
    write_mnist(tmp_path, "train", train, zipped)
    write_mnist(tmp_path, "test", test, zipped)
    parts = load_images(DataConfig(data_dir=str(tmp_path)))
    assert list(parts) == ["train", "test"]
    for part, (pixels, labels) in (("train", train), ("test", test)):
        assert parts[part].pixels.shape == (len(labels), 1, 28, 28)
        assert np.array_equal(parts[part].pixels[:, 0].numpy(), pixels)
        assert parts[part].labels.tolist() == labels.tolist()


class Stored:
    """What torchvision's readers of CIFAR give: images as height x width x channel, and classes."""

    base_folder = "cifar-python"

    def __init__(self, root: Path, train: bool) -> None:
        if not (root / self.base_folder).is_dir():
            raise RuntimeError("Dataset not found or corrupted")
        self.pixels, labels = colours(6 if train else 3, 100, seed=train)
        self.data = self.pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        self.targets = labels.tolist()


def test_cifar_by_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = SimpleNamespace(CIFAR10=None, CIFAR100=Stored)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=readers))
    config = DataConfig("cifar100", str(tmp_path))
    with pytest.raises(OSError, match=r"data_dir=.*expected the folder cifar-python .* unpack"):
        load_images(config)
    (tmp_path / Stored.base_folder).mkdir()
    for part, images in load_images(config).items():
        written = Stored(tmp_path, part == "train")
        assert images.labels.tolist() == written.targets
        # the first 1024 bytes are the red channel, row by row
        assert np.array_equal(images.pixels[:, 0, 2, :].numpy(), written.pixels[:, 64:96])


def test_cifar_without_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    command = ["train", "--data.name", "cifar10", "--data.data_dir", str(tmp_path)]
    said = refusal(main, capsys, *command, "--output_dir", str(tmp_path / "run"))
    assert said == "error: torchvision is not installed; pip install -e '.[images]'"


@pytest.mark.parametrize("channels", [1, 3])
def test_the_hub_gives_the_same(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (4, 28, 28) if channels == 1 else (4, 32, 32, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    image, name = ("image", "mnist") if channels == 1 else ("img", "cifar10")
    features = datasets.Features(
        {image: datasets.Image(), "label": datasets.ClassLabel(num_classes=10)}
    )
    rows = datasets.Dataset.from_dict(
        {image: [{"bytes": _png(one), "path": None} for one in pixels], "label": [3, 1, 2, 9]},
        features=features,
    )
    asked = []

    def load_dataset(source: str) -> dict[str, datasets.Dataset]:
        asked.append(source)
        return {"train": rows, "test": rows.select(range(2))}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    parts = load_images(DataConfig(name))  # type: ignore[arg-type]
    assert asked == [{"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10"}[name]]
    assert parts["train"].labels.tolist() == [3, 1, 2, 9]
    assert len(parts["test"]) == 2
    last = parts["train"].pixels.permute(0, 2, 3, 1).numpy()
    assert np.array_equal(last, pixels[..., None] if channels == 1 else pixels)


def _png(pixels: np.ndarray) -> bytes:
    return datasets.Image().encode_example(pixels)["bytes"]


def test_without_a_hub_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(source: str) -> Any:
        raise ConnectionError("no route")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(
        OSError, match=r"could not get data.name=mnist .* ylecun/mnist .*--data\.data_dir"
    ):
        load_images(DataConfig())


def parts_of(train: int, test: int) -> dict[str, Images]:
    """Images whose label is their number, so that they can be told apart."""
    labels = torch.arange(train + test)
    whole = Images(labels.to(torch.uint8)[:, None, None, None].repeat(1, 1, 28, 28), labels)
    return {
        "train": whole.take(torch.arange(train)),
        "test": whole.take(torch.arange(train, train + test)),
    }


def test_random_splits_part_all_images_by_the_seed() -> None:
    config = DataConfig(validation=3, test=5)
    first, again, other = (cut(parts_of(14, 6), config, seed) for seed in (0, 0, 1))
    assert first.sizes() == {"train": 12, "validation": 3, "test": 5, "found": 20}
    every = torch.cat([first.train.labels, first.validation.labels, first.test.labels])
    assert every.sort().values.tolist() == list(range(20))
    # images of the official training set are among those of the test
    assert (first.test.labels < 14).any()
    assert torch.equal(first.test.labels, again.test.labels)
    assert not torch.equal(first.test.labels, other.test.labels)
    fewer = cut(parts_of(14, 6), DataConfig(train=4, validation=3, test=5), 0)
    assert fewer.sizes() == {"train": 4, "validation": 3, "test": 5, "found": 20}


def test_copies_of_an_image_are_in_no_two_parts() -> None:
    parts = parts_of(14, 6)
    parts["test"].pixels[:4] = parts["train"].pixels[:4]
    splits = cut(parts, DataConfig(validation=3, test=5), 0)
    assert splits.sizes() == {"train": 8, "validation": 3, "test": 5, "found": 16}
    every = torch.cat([splits.train.pixels, splits.validation.pixels, splits.test.pixels])
    assert len(every[:, 0, 0, 0].unique()) == 16


def test_official_splits_keep_the_test_images() -> None:
    splits = cut(parts_of(14, 6), DataConfig(split="official", validation=4), 0)
    assert splits.test.labels.tolist() == list(range(14, 20))
    rest = torch.cat([splits.train.labels, splits.validation.labels])
    assert rest.sort().values.tolist() == list(range(14))
    assert len(splits.validation) == 4


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
FILES: list[tuple[str, Callable[[bytes], bytes] | None, str]] = [
    (IMAGES, lambda b: b"\0\0\r\3" + b[4:], f"{IMAGES}: starts with 00000d03, expected .*0000080"),
    (IMAGES, lambda b: b[:-10], "7,046 bytes of data, expected 7,056 .*; .*download it again"),
    (LABELS, None, rf"{LABELS} \(or .*\.gz\) is missing beside {IMAGES}"),
    (f"{IMAGES}.gz", lambda b: gzip.compress(b)[:-20], "not a whole gzip file"),
]


@pytest.mark.parametrize(("name", "change", "message"), FILES, ids=[row[2] for row in FILES])
def test_broken_files(
    name: str, change: Callable[[bytes], bytes] | None, message: str, tmp_path: Path
) -> None:
    write_mnist(tmp_path, "train", digits(9))
    file = tmp_path / name.removesuffix(".gz")
    content = file.read_bytes()
    file.unlink()
    if change is not None:
        (tmp_path / name).write_bytes(change(content))
    with pytest.raises((ValueError, OSError), match=message):
        load_images(DataConfig(data_dir=str(tmp_path)))


PIXELS, CLASSES = digits(9)
ARRAYS = [
    (np.pad(PIXELS, ((0, 0), (2, 2), (2, 2))), CLASSES, r"\(9, 1, 32, 32\), .*is data\.name right"),
    (PIXELS, CLASSES[:8], "has 9 images, train-labels-idx1-ubyte 8 labels; expected as many"),
    (PIXELS, CLASSES + 90, r"is 9\d; expected 0 to 9; is data\.name right"),
]


@pytest.mark.parametrize(("pixels", "classes", "message"), ARRAYS, ids=[row[2] for row in ARRAYS])
def test_arrays_that_are_no_mnist(
    pixels: np.ndarray, classes: np.ndarray, message: str, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="no mnist files there; expected some of train-images"):
        load_images(DataConfig(data_dir=str(tmp_path)))
    write_mnist(tmp_path, "train", (pixels, classes))
    with pytest.raises(ValueError, match=message):
        load_images(DataConfig(data_dir=str(tmp_path)))


def test_too_few_images_and_no_official_test_set(tmp_path: Path) -> None:
    write_mnist(tmp_path, "test", digits(20))
    folder = str(tmp_path)
    with pytest.raises(ValueError, match=r"20 distinct images, less 20 held out .* leave 0 for"):
        load_splits(DataConfig(data_dir=folder, validation=10, test=10), 0)
    with pytest.raises(ValueError, match=r"leave 10 for training, expected 11; lower train"):
        load_splits(DataConfig(data_dir=folder, train=11, validation=5, test=5), 0)
    with pytest.raises(ValueError, match=r"data\.split=official: the train images of mnist"):
        load_splits(DataConfig(data_dir=folder, split="official", validation=5), 0)

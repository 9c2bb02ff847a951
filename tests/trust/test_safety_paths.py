"""Names in files and configs that would lead out of their folder are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.images.config import ImageSweepConfig, SweptLoss
from experiments.multilabel.config import MethodConfig, MultilabelSweepConfig
from experiments.multilabel.data.config import DataConfig, SyntheticConfig
from experiments.multilabel.data.images import read_coco, read_voc
from sparse_attn.evaluation.data import load_task
from sparse_attn.evaluation.tasks import TASKS, get_task
from sparse_attn.system.paths import safe_join
from tests.glue.report.make_sweep import make_config

FILES = ("../secret", "a/../../secret", "/secret")
TASK = """\
text: sentence
label: label
labels: ["0", "1"]
splits: {{train: {train}, dev: dev.tsv}}
"""


@pytest.mark.parametrize("name", [*FILES, ".."])
def test_below(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"where: .* leaves the folder .*; expected a path"):
        safe_join(tmp_path, name, "where")


def test_below_keeps_what_stays(tmp_path: Path) -> None:
    for name in ("a", "a/b.tsv", "..a", "a..b/c", "./a"):
        assert safe_join(tmp_path, name, "where") == tmp_path / name


@pytest.mark.parametrize("name", FILES)
def test_files_of_a_task(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (tmp_path / "secret.tsv").write_text("sentence\tlabel\nmine\t1\n")
    (folder / "dev.tsv").write_text("sentence\tlabel\na\t1\n")
    (folder / "own.yaml").write_text(TASK.format(train=f"{name}.tsv"))
    for data_dir in (None, folder):
        with pytest.raises(ValueError, match=r"own: splits\.train: .* leaves the folder"):
            load_task(get_task(folder / "own.yaml"), data_dir)
    with pytest.raises(ValueError, match=r"RTE: splits\.dev: .* leaves the folder"):
        load_task(replace(TASKS["RTE"], splits={"dev": name, "train": "train.tsv"}), folder)


def voc(folder: Path, name: str) -> None:
    lists = folder / "VOCdevkit/VOC2007/ImageSets/Main"
    lists.mkdir(parents=True)
    for split in ("train", "val"):
        (lists / f"{split}.txt").write_text(f"{name}\n")


def coco(folder: Path, name: str) -> None:
    (folder / "annotations").mkdir()
    content = {
        "images": [{"id": 1, "file_name": name}],
        "annotations": [],
        "categories": [{"id": 1, "name": "cat"}],
    }
    for split in ("train", "val"):
        (folder / f"annotations/instances_{split}2017.json").write_text(json.dumps(content))


SOURCES: dict[str, tuple[Callable[[Path, str], None], Callable[[Path, int], Any]]] = {
    "voc": (voc, read_voc),
    "coco": (coco, read_coco),
}


@pytest.mark.parametrize("name", ["../../secret", "/secret"])
@pytest.mark.parametrize("source", SOURCES)
def test_files_of_images(source: str, name: str, tmp_path: Path) -> None:
    write, read = SOURCES[source]
    write(tmp_path, name)
    with pytest.raises(ValueError, match=r"secret.* leaves the folder"):
        read(tmp_path, 8)


def own_task(name: str, folder: Path) -> None:
    (folder / "own.yaml").write_text(f"name: {json.dumps(name)}\n{TASK.format(train='train.tsv')}")
    make_config(tasks={str(folder / "own.yaml"): None})


def glue_mapping(name: str, folder: Path) -> None:
    mappings = make_config().mappings
    make_config(mappings={**mappings, name: mappings["sharp"]})


DATA = DataConfig(synthetic=SyntheticConfig())
SWEEPS: dict[str, Callable[[str, Path], Any]] = {
    "task": own_task,
    "mapping": glue_mapping,
    "data": lambda name, _: MultilabelSweepConfig("o", {name: DATA}, {"softmax": MethodConfig()}),
    "method": lambda name, _: MultilabelSweepConfig(
        "o", {"d": DATA}, {"softmax": MethodConfig(), name: MethodConfig()}
    ),
    "loss": lambda name, _: ImageSweepConfig("o", {name: SweptLoss("softmax", [0.1])}, 1),
}


@pytest.mark.parametrize("name", [*FILES, "..", "a\\..\\b", "a\0b", ".", "", "n" * 200])
@pytest.mark.parametrize("kind", SWEEPS)
def test_names_that_become_names_of_files(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must fit into file names"):
        SWEEPS[kind](name, tmp_path)
    SWEEPS[kind]("a name", tmp_path)

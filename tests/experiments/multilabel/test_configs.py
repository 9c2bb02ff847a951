"""The configs of images and texts: they parse, and hold what the paper states."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.multilabel.__main__ import PROGRAM
from experiments.multilabel.config import RunConfig, SweepConfig

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs" / "multilabel"


def read_sweep(name: str) -> SweepConfig:
    parsed = PROGRAM.parse(["sweep", "--config", str(CONFIGS / name)])
    assert isinstance(parsed, tuple)
    return parsed[0]


@pytest.mark.parametrize("name", ["voc2007", "coco2017"])
def test_images_as_in_the_paper(name: str) -> None:
    config = read_sweep(f"{name}.yaml")
    images = config.data[name].images
    assert images is not None
    assert (images.source, images.size) == (name, 224)
    assert images.backbone == f"torchvision://resnet{'18' if name == 'voc2007' else '101'}"
    assert config.learning_rates == [1e-3, 1e-4, 1e-5]
    assert config.train.epochs == 100
    assert config.methods["softmax"].thresholds == [0.05, 0.1, 0.15, 0.2, 0.3]
    assert list(config.methods)[:5] == [
        *("softmax", "sparsemax-huber", "sparsemax-hinge", "sparsehourglass", "r-softmax")
    ]


def test_both_image_sweeps_compare_the_same_methods() -> None:
    assert read_sweep("voc2007.yaml").methods == read_sweep("coco2017.yaml").methods


@pytest.mark.parametrize("name", ["text-topics", "text-sst2"])
def test_texts_with_a_predicted_number_of_labels(name: str) -> None:
    config = PROGRAM.parse(["train", "--config", str(CONFIGS / f"{name}.yaml")])
    assert isinstance(config, RunConfig)
    assert config.text is not None
    assert (config.method.mapping, config.method.sparsity) == ("r-softmax", "predicted")
    small = read_sweep("text-small.yaml")
    assert config.method == small.methods["r-softmax"]
    texts = [data.text for data in small.data.values() if data.text is not None]
    plain = [replace(text, data_dir="", train_rows=None) for text in texts]
    assert replace(config.text, data_dir="") in plain

"""Configs of runs and sweeps, and the heads of their methods."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from experiments.multilabel.__main__ import EXPERIMENT
from experiments.multilabel.config import (
    MethodConfig,
    MultilabelSweepConfig,
    TrainConfig,
)
from experiments.multilabel.data.config import DataConfig, ImageConfig
from experiments.multilabel.models import SigmoidHead, make_head
from sparse_attn.engine.command import from_dict
from tests.experiments.multilabel.tiny import run_config

CONFIGS = Path(__file__).parents[3] / "configs" / "multilabel"
# synthetic-raw.yaml lies over another
SWEEPS = sorted(path for path in CONFIGS.glob("*.yaml") if "methods:" in path.read_text())
HIDDEN, LABELS = 6, 4


def test_sigmoid_is_binary_cross_entropy_and_its_threshold_one_of_p() -> None:
    torch.manual_seed(0)
    head = make_head(MethodConfig("sigmoid"), HIDDEN, LABELS)
    assert isinstance(head, SigmoidHead)
    hidden = torch.randn(7, HIDDEN)
    target = torch.randint(2, (7, LABELS))
    p = torch.sigmoid(hidden @ head.weight.T + head.bias)
    torch.testing.assert_close(head(hidden).exp(), p)
    torch.testing.assert_close(head.loss(hidden, target), F.binary_cross_entropy(p, target.float()))
    for threshold in (0.5, 0.3):
        head.threshold = threshold
        assert torch.equal(head.decide(head(hidden)), p > threshold)


def test_the_same_run_wherever_it_lies_and_however_it_is_read(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    elsewhere = replace(
        config,
        output_dir="elsewhere",
        keep_model=False,
        resume=True,
        train=replace(config.train, workers=2),
    )
    assert config.comparable() == elsewhere.comparable()
    assert config.comparable() != replace(config, method=MethodConfig("entmax")).comparable()


def test_where_files_lie_does_not_matter_to_a_sweep() -> None:
    def sweep(folder: str, workers: int) -> MultilabelSweepConfig:
        data = DataConfig(images=ImageConfig("voc2007", data_dir=folder))
        train = TrainConfig(epochs=7, workers=workers)
        return MultilabelSweepConfig("o", {"voc": data}, {"softmax": MethodConfig()}, train=train)

    here, there = sweep("a", 0), sweep("b", 2)
    assert here.content() == there.content()
    first, second = (s.run("voc", "softmax", 0.25, 3) for s in (here, there))
    assert first.comparable() == second.comparable()
    assert second.images is not None
    assert second.images.data_dir == "b"
    assert first.train == TrainConfig(epochs=7, learning_rate=0.25, seed=3)
    assert not first.keep_model


@pytest.mark.parametrize("file", SWEEPS, ids=lambda path: path.stem)
def test_configs_are_those_of_the_paper_and_come_back_from_their_record(file: Path) -> None:
    config = EXPERIMENT.program.parse(["sweep", "--config", str(file)])[1][0]
    assert 0.001 in config.learning_rates
    assert config.train.epochs >= 100
    assert len(EXPERIMENT.plan(config).cells) == len(config.data) * len(config.methods)
    for data in config.data.values():
        assert data.images is None or data.images.size == 224
        assert data.synthetic is None or data.synthetic.parts == (3500, 500, 1000)
    content = json.loads(json.dumps(config.content()))
    again = from_dict(MultilabelSweepConfig, {"output_dir": "x", **content})
    assert again.content() == content

"""Configs of runs and sweeps, and the heads of their methods."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from experiments.multilabel.__main__ import EXPERIMENT
from experiments.multilabel.config import (
    MethodConfig,
    MultilabelRunConfig,
    MultilabelSweepConfig,
    TrainConfig,
)
from experiments.multilabel.data.config import DataConfig, ImageConfig, SyntheticConfig
from experiments.multilabel.models import SigmoidHead, make_head
from sparse_attn.engine.command import from_dict
from sparse_attn.engine.config import ScheduleConfig
from tests.experiments.multilabel.tiny import METHODS, run_config

CONFIGS = Path(__file__).parents[3] / "configs" / "multilabel"
HIDDEN, LABELS = 6, 4


def read_sweep(name: str) -> MultilabelSweepConfig:
    return EXPERIMENT.program.parse(["sweep", "--config", str(CONFIGS / f"{name}.yaml")])[1][0]


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


@pytest.mark.parametrize("name", ["sparsemax-huber", "t-softmax"])
def test_thresholds_of_mappings_with_zeros_are_0(name: str) -> None:
    assert make_head(METHODS[name], HIDDEN, LABELS).threshold == 0


def test_a_schedule_ends_at_a_parameter_of_the_method() -> None:
    method = MethodConfig("r-softmax", {"r": 0.5}, schedule=ScheduleConfig("r", 0.1))
    schedule = method.sparsity_schedule()
    assert schedule is not None
    assert (schedule.value(0), schedule.value(1)) == (0.1, 0.5)


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


def test_a_config_comes_back_from_its_dict(tmp_path: Path) -> None:
    method = MethodConfig(
        "r-softmax", {"r": 0.5}, schedule=ScheduleConfig("r", 0.0, "cosine"), thresholds=[0.1]
    )
    scheduled = replace(run_config(tmp_path), method=method)
    assert from_dict(MultilabelRunConfig, asdict(scheduled)) == scheduled


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["synthetic", "synthetic-rates"])
def test_configs_of_the_synthetic_study(name: str) -> None:
    config = read_sweep(name)
    assert config.train.epochs >= 150
    assert 0.001 in config.learning_rates  # the paper's
    for label, data in config.data.items():
        assert data.synthetic is not None
        assert (data.synthetic.rows, data.synthetic.features) == (5000, 128)
        assert label.startswith(f"n{data.synthetic.classes}-")
    configs = [data.synthetic for data in config.data.values()]
    assert {c.classes for c in configs if c} == {10, 20, 30}
    assert len(set(configs)) == len(configs)


def test_synthetic_defaults_are_the_papers() -> None:
    assert (SyntheticConfig().rows, SyntheticConfig().features) == (5000, 128)
    assert SyntheticConfig().parts == (3500, 500, 1000)


@pytest.mark.parametrize(
    ("name", "network"), [("voc2007", "resnet-18"), ("coco2017", "resnet-101")]
)
def test_images_as_in_the_paper(name: str, network: str) -> None:
    config = read_sweep(name)
    images = config.data[name].images
    assert images is not None
    assert (images.source, images.size) == (name, 224)
    assert images.backbone == f"microsoft/{network}"
    assert config.learning_rates == [1e-3, 1e-4, 1e-5]
    assert config.train.epochs == 100
    assert config.methods["softmax"].thresholds == [0.05, 0.1, 0.15, 0.2, 0.3]
    assert list(config.methods)[:5] == [
        *("softmax", "sparsemax-huber", "sparsemax-hinge", "sparsehourglass", "r-softmax")
    ]
    assert config.methods == read_sweep("voc2007").methods

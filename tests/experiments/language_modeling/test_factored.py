"""The factored head beside the dense one that it replaces, and Bouchard's bound."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.language_modeling import training
from experiments.language_modeling.__main__ import EXPERIMENT
from experiments.language_modeling.config import LanguageRunConfig
from experiments.language_modeling.models import build_head
from experiments.language_modeling.sections import (
    OBJECTIVES,
    CorpusConfig,
    HeadConfig,
    ModelConfig,
    StageConfig,
)
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.losses import bouchard_loss
from tests.experiments.language_modeling.toys import write_ptb

STAGE = StageConfig(
    learning_rate=0.5,
    schedule="linear",
    warmup_steps=5,
    batch=4,
    bptt=5,
    weight_decay=1e-3,
    epochs=2,
)


@pytest.fixture
def config(tmp_path: Path) -> LanguageRunConfig:
    """A feed-forward model in two stages, the first of which clips most gradients."""
    line = "the cat <unk> the dog and the cat ran to the mat\n the end\n"
    return LanguageRunConfig(
        output_dir="",
        corpus=CorpusConfig("ptb", write_ptb(tmp_path / "data", line * 3, train=line * 20)),
        model=ModelConfig("feed-forward", embedding=4, hidden=8, layers=1, output_std=0.1),
        train=replace(STAGE, clip=0.5),
        finetune=replace(STAGE, clip=None, learning_rate=0.1),
        device="cpu",
    )


def trained(config: LanguageRunConfig, **head: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The results and the best weights of a run in float64."""
    parts = EXPERIMENT.assemble(replace(config, head=HeadConfig(tie=False, **head)))
    parts.model.double()
    with TemporaryDirectory() as folder:
        results = parts.perform(Path(folder))
    assert results is not None
    return results, parts.model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mapping", OBJECTIVES)
def test_a_factored_run_is_the_dense_one(
    config: LanguageRunConfig, monkeypatch: pytest.MonkeyPatch, mapping: str, bias: bool
):
    monkeypatch.setattr(training, "REFRESH", 3)
    head = {"mapping": mapping, "bias": bias, "start": "prior" if bias else "zero"}
    dense, expected = trained(config, **head)
    factored, found = trained(config, kind="factored", **head)
    assert factored["head"] == f"factored-{mapping}"
    assert factored["parameters"] == dense["parameters"]
    for ours, theirs in zip(factored["epochs"], dense["epochs"], strict=True):
        for key in ("train_nll", "valid_nll"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-9)
    assert factored["test_perplexity"] == pytest.approx(dense["test_perplexity"], rel=1e-9)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    # and the head learned
    assert factored["epochs"][-1]["train_nll"] < factored["epochs"][0]["train_nll"]


def test_a_gradient_that_overflows_ends_the_run(config: LanguageRunConfig):
    wild = replace(config, train=replace(STAGE, learning_rate=1e30, clip=None), finetune=None)
    with pytest.raises(DivergedError, match=r"diverged; lower train\.learning_rate"):
        trained(wild, kind="factored", mapping="bouchard")


def test_bouchard_is_softmax_with_another_loss():
    head = build_head(HeadConfig(mapping="bouchard", tie=False), 4, nn.Embedding(7, 4))
    hidden, targets = torch.randn(5, 4), torch.tensor([0, 6, 2, 2, 1])
    scores = head.scores(hidden)
    torch.testing.assert_close(head.log_prob(hidden), scores.log_softmax(-1))
    torch.testing.assert_close(head.nll(hidden, targets), F.cross_entropy(scores, targets))
    loss = head.loss(hidden, targets, chunk=2)
    torch.testing.assert_close(loss, bouchard_loss(scores, targets))
    assert loss > head.nll(hidden, targets)

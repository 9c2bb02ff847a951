"""Runs from config to record: the optimizers' steps, the switch, resuming, divergence."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.language_modeling import training
from experiments.language_modeling.__main__ import EXPERIMENT
from experiments.language_modeling.config import LanguageRunConfig, MeasuresConfig
from experiments.language_modeling.optimizer import (
    averaged,
    draw_length,
    make_optimizer,
    schedule,
    set_learning_rate,
    triggered,
)
from experiments.language_modeling.sections import (
    CorpusConfig,
    DynamicConfig,
    EvaluationConfig,
    HeadConfig,
    ModelConfig,
    StageConfig,
)
from sparse_attn.evaluation.predictions import DivergedError
from tests.experiments.language_modeling.toys import write_ptb
from tests.marks import soak

AWD = ModelConfig(
    embedding=8,
    hidden=10,
    layers=2,
    dropout=0.2,
    dropout_hidden=0.2,
    dropout_input=0.2,
    dropout_embedding=0.1,
    weight_drop=0.3,
    alpha=2.0,
    beta=1.0,
)
STAGE = StageConfig(
    learning_rate=2.0, average_from=1, batch=4, bptt=7, vary=True, weight_decay=1e-6, epochs=2
)


class CutOffError(Exception):
    """The power went."""


SHORT = StageConfig(batch=4, bptt=7, learning_rate=1.0, vary=True, epochs=2)
PLAIN = replace(STAGE, average_from="never")
FACTORED = HeadConfig(kind="factored", mapping="taylor-softmax", tie=False, start="prior")
ADAM = replace(SHORT, optimizer="adam", learning_rate=0.01, schedule="linear")


@pytest.fixture
def config(tmp_path: Path) -> LanguageRunConfig:
    """An AWD-LSTM in small, with an averaged second epoch and a finetuning stage."""
    line = "the cat <unk> the dog and the cat ran to the mat\n the end\n"
    return LanguageRunConfig(
        output_dir=str(tmp_path / "run"),
        corpus=CorpusConfig("ptb", write_ptb(tmp_path / "data", line * 3, train=line * 20)),
        model=AWD,
        train=STAGE,
        finetune=replace(STAGE, average_from=0, epochs=1, longest=3),
        evaluation=EvaluationConfig(2, 1, 9),
        device="cpu",
        checkpoint_steps=1,
    )


def run(config: LanguageRunConfig) -> dict[str, Any]:
    results = EXPERIMENT.train(config, EXPERIMENT.prepare(config))
    assert results is not None
    return results


def read(config: LanguageRunConfig) -> dict[str, Any]:
    return json.loads((Path(config.output_dir) / "results.json").read_text())


def weights(folder: str) -> dict[str, torch.Tensor]:
    return torch.load(Path(folder) / "model.pt", weights_only=True)


def test_a_run_writes_its_record(config: LanguageRunConfig):
    results = run(config)
    assert results == json.loads((Path(config.output_dir) / "results.json").read_text())
    assert results["status"] == "finished"
    assert results["head"] == "softmax"
    assert results["tokens"] == {"train": 320, "valid": 48, "test": 48}
    epochs = results["epochs"]
    assert [epoch["stage"] for epoch in epochs] == ["train", "train", "finetune"]
    assert [epoch["averaging"] for epoch in epochs] == [False, True, True]
    best = min(epoch["valid_nll"] for epoch in epochs)
    assert results["valid_perplexity"] == pytest.approx(math.exp(best))
    assert epochs[0]["train_nll"] < math.log(10)
    assert results["parameters"] == sum(w.numel() for w in set_of(weights(config.output_dir)))


def set_of(state: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Tied weights once."""
    return [value for name, value in state.items() if name != "head.weight"]


@pytest.mark.parametrize("steps", [1, 7, 1000])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "factored"])
@pytest.mark.parametrize("share", [0.5, *soak(0.1, 0.9)])
def test_a_run_that_was_cut_off_goes_on_as_if_it_had_not(
    config: LanguageRunConfig,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    optimizer: str,
    steps: int,
):
    """With a checkpoint after each step, after some, and after each epoch alone."""
    config = replace(config, checkpoint_steps=steps)
    if optimizer == "adam":
        config = replace(config, train=ADAM, finetune=None)
    if optimizer == "factored":
        config = replace(config, head=FACTORED, train=PLAIN, finetune=PLAIN)
    whole = replace(config, output_dir=config.output_dir + "-whole")
    drawn, last = 0, math.inf

    def draw(stage: StageConfig) -> int:
        nonlocal drawn
        if drawn == last:
            raise CutOffError
        drawn += 1
        return draw_length(stage)

    monkeypatch.setattr(training, "draw_length", draw)
    expected = run(whole)
    every, done = drawn, round(share * drawn)
    drawn, last = 0, done
    with pytest.raises(CutOffError):
        run(config)
    drawn, last = 0, math.inf
    compare(run(replace(config, resume=True)), expected)
    assert every - done <= drawn < every - done + steps


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Two runs are the same but for the time they took."""
    for ours, theirs in zip(found["epochs"], expected["epochs"], strict=True):
        assert ours | {"seconds": 0} == theirs | {"seconds": 0}
    assert found["test_perplexity"] == expected["test_perplexity"]
    uninterrupted = weights(expected["config"]["output_dir"])
    for name, value in weights(found["config"]["output_dir"]).items():
        assert torch.equal(value, uninterrupted[name]), name


def test_output_dir_belongs_to_one_run(config: LanguageRunConfig, tmp_path: Path):
    short = replace(config, finetune=None, train=replace(SHORT, max_steps=2))
    with pytest.raises(ValueError, match="holds no run to resume"):
        EXPERIMENT.prepare(replace(short, resume=True))
    EXPERIMENT.prepare(short)
    with pytest.raises(ValueError, match="interrupted run of this config; pass --resume"):
        EXPERIMENT.prepare(short)
    with pytest.raises(ValueError, match=r"another config \(.*seed: requested 3, found 0"):
        EXPERIMENT.prepare(replace(short, seed=3, resume=True))
    # where the corpus lies does not matter, nor how many rows of scores are held at once
    moved = CorpusConfig("ptb", str((tmp_path / "data").rename(tmp_path / "moved")))
    assert run(replace(short, resume=True, corpus=moved, chunk=7))["status"] == "finished"
    with pytest.raises(ValueError, match=r"holds a finished run of this config, see results\.json"):
        EXPERIMENT.prepare(replace(short, corpus=moved, resume=True))
    with pytest.raises(ValueError, match="is not the folder of a run"):
        EXPERIMENT.prepare(replace(short, corpus=moved, output_dir=str(tmp_path / "moved")))


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_best(config: LanguageRunConfig):
    wild = replace(STAGE, average_from="never", learning_rate=1e38, clip=None, epochs=9)
    with pytest.raises(DivergedError, match=r"diverged; lower finetune\.learning_rate"):
        run(replace(config, finetune=wild))
    results = read(config)
    assert (results["status"], len(results["epochs"])) == ("diverged", 2)
    best = min(epoch["valid_nll"] for epoch in results["epochs"])
    assert results["valid_perplexity"] == pytest.approx(math.exp(best))
    assert weights(config.output_dir)
    at_once = replace(config, train=wild, finetune=None, output_dir=config.output_dir + "2")
    with pytest.raises(DivergedError, match=r"diverged; lower train\.learning_rate"):
        run(at_once)
    assert read(at_once)["valid_perplexity"] is None
    with pytest.raises(ValueError, match=r"holds a diverged run of this config, see results\.json"):
        EXPERIMENT.prepare(replace(at_once, resume=True))
    assert not Path(at_once.output_dir, "model.pt").exists()


def test_a_mapping_with_zeros_trains_by_its_own_loss(config: LanguageRunConfig):
    head = HeadConfig(mapping="sparsemax")
    results = run(replace(config, head=head, train=ADAM, finetune=None))
    assert results["status"] == "finished"
    assert results["epochs"][-1]["train_nll"] < results["epochs"][0]["train_nll"]
    assert results["test_perplexity"] > 1


@pytest.mark.slow
def test_measures_go_into_the_record(config: LanguageRunConfig, tmp_path: Path):
    head = HeadConfig(mapping="plif", params={"knots": 50, "bound": 20.0}, mapping_lr=0.02)
    simlex = tmp_path / "SimLex.txt"
    rows = ["word1\tword2\tSimLex999", "cat\tdog\t5", "cat\tmat\t1", "the\tend\t3", "a\tb\t2"]
    simlex.write_text("\n".join(rows) + "\n", encoding="utf-8")
    # without learning, dynamic evaluation is evaluation
    dynamic = DynamicConfig(lr=0.0, lamb=0.0, batch=4)
    asked = MeasuresConfig(rank_contexts=40, simlex=str(simlex), dynamic=dynamic)
    found = run(replace(config, head=head, finetune=None, measures=asked))
    assert 0 <= found["top_10_error"] <= 1
    assert {key: found["rank"][key] for key in ("contexts", "vocab", "d")} == {
        **{"contexts": 40, "vocab": 10, "d": 8}
    }
    assert found["rank"]["float64"] == {"rank": 10, "contexts": 40}
    assert found["slopes"]["min"] > 0
    assert found["function"][50] == pytest.approx((0.0, 0.0), abs=1e-9)
    assert (found["function"][0][0], found["function"][-1][0]) == (-20.0, 20.0)
    assert found["simlex"]["pairs_found"] == 3
    assert found["dynamic"]["test_perplexity"] == pytest.approx(found["test_perplexity"])
    assert read(config) == json.loads(json.dumps(found))


def test_averaging_is_the_mean_of_the_weights_after_each_step():
    weight = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    module = nn.ParameterList([weight])
    optimizer = make_optimizer(module, StageConfig(learning_rate=0.1), None, averaging=True)
    visited = []
    for _ in range(5):
        optimizer.zero_grad()
        (weight**4).sum().backward()
        optimizer.step()
        visited.append(weight.detach().clone())
    last = weight.detach().clone()
    with averaged(optimizer):
        # torch counts the first step twice: its average begins with the second
        torch.testing.assert_close(weight.detach(), torch.stack(visited[1:]).mean(0))
    assert torch.equal(weight, last)


def test_the_slopes_of_a_plif_have_a_learning_rate_of_their_own(config: LanguageRunConfig):
    head = HeadConfig(mapping="plif", params={"knots": 50}, mapping_lr=0.02)
    model = EXPERIMENT.assemble(replace(config, head=head)).model
    optimizer = make_optimizer(model, StageConfig(learning_rate=20.0), 0.02, averaging=False)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert rates[id(model.head.mapping.raw_slopes)] == 0.02
    assert rates[id(model.embedding.weight)] == 20.0
    set_learning_rate(optimizer, 0.5)
    assert {group["lr"] for group in optimizer.param_groups} == {0.01, 10.0}


@pytest.mark.parametrize("seed", range(5))
def test_the_trigger_is_that_of_awd_lstm(seed: int):
    losses = torch.rand(20, generator=torch.Generator().manual_seed(seed)).tolist()
    for count, nll in enumerate(losses):
        before = losses[:count]
        expected = count > 5 and any(nll > earlier for earlier in before[: count - 5])
        assert triggered(before, nll, 5) is expected


def test_the_trigger_starts_the_averaging_and_then_ends_the_stage(
    config: LanguageRunConfig, monkeypatch: pytest.MonkeyPatch
):
    losses = iter([3.0, 2.0, 2.5, 2.0, 2.0, 2.6, 2.0, 2.7, 9.0])
    monkeypatch.setattr(training, "mean_nll", lambda *_: next(losses))
    stage = replace(STAGE, average_from="trigger", stop_on_trigger=True, patience=1, epochs=20)
    results = run(replace(config, train=stage, finetune=None))
    # 2.5 is above 2.0, but that is the last, which does not count
    assert [epoch["averaging"] for epoch in results["epochs"]] == [False] * 6 + [True] * 2
    assert results["epochs"][-1]["valid_nll"] == 2.7


def test_lengths_are_those_of_awd_lstm():
    stage = StageConfig(bptt=70, vary=True)
    torch.manual_seed(0)
    lengths = torch.tensor([draw_length(stage) for _ in range(4000)], dtype=torch.float64)
    long = lengths > 52
    assert long.double().mean() == pytest.approx(0.95, abs=0.015)
    # cut to whole numbers, which takes a half
    assert lengths[long].mean() == pytest.approx(69.5, abs=0.3)
    assert lengths[~long].mean() == pytest.approx(34.5, abs=1.5)
    assert lengths[long].std() == pytest.approx(5, abs=0.3)
    capped = replace(stage, longest=2)
    assert max(draw_length(capped) for _ in range(200)) == 72
    assert min(draw_length(replace(stage, bptt=6)) for _ in range(200)) == 5
    assert draw_length(replace(stage, vary=False)) == 70


def test_the_schedule_warms_up_and_goes_down_to_zero():
    stage = StageConfig(schedule="linear", warmup_steps=4)
    assert schedule(stage, 0, 0.0) == 0.25
    assert schedule(stage, 3, 0.1) == pytest.approx(0.9)
    assert schedule(stage, 100, 0.75) == 0.25
    assert schedule(StageConfig(), 0, 0.75) == 1.0

"""Training by epochs: the best weights, an exact resume, an end that is no number."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from sparse_attn.engine.fitting import FitProgress, epoch_generator, fit
from sparse_attn.evaluation.predictions import DivergedError

INPUTS = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS @ torch.tensor([1.0, -2.0, 0.5])


class Run:
    """A small regression with dropout, whose scores can be dictated."""

    def __init__(self, scores: list[float] | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.scores = scores
        self.weights: list[float] = []

    def train_epoch(self, epoch: int) -> dict[str, float]:
        assert self.model.training
        total = 0.0
        order = torch.randperm(40, generator=epoch_generator(0, epoch))
        for rows in order.split(10):
            loss = (self.model(INPUTS[rows]).squeeze(-1) - TARGETS[rows]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item() / 4
        return {"loss": total}

    def evaluate(self) -> dict[str, float]:
        assert not self.model.training
        self.weights.append(self.model[0].weight[0, 0].item())
        if self.scores is not None:
            return {"score": self.scores[len(self.weights) - 1]}
        return {"score": -(self.model(INPUTS).squeeze(-1) - TARGETS).square().mean().item()}

    def fit(self, epochs: int, **options: object) -> FitProgress:
        return fit(
            self.model,
            self.optimizer,
            self.train_epoch,
            self.evaluate,
            epochs=epochs,
            **options,  # type: ignore[arg-type]
        )


def test_the_best_weights_are_left_in_the_model() -> None:
    run = Run(scores=[0.1, 0.7, 0.3, 0.7, 0.2])
    progress = run.fit(5)
    assert (progress.epoch, progress.best_epoch, progress.best_score) == (5, 2, 0.7)
    assert progress.stale == 3
    assert run.model[0].weight[0, 0].item() == run.weights[1]
    assert len(set(run.weights)) == 5
    assert [entry["epoch"] for entry in progress.history] == [1, 2, 3, 4, 5]
    assert not run.model.training


def test_after_epoch_ends_it() -> None:
    run = Run(scores=[0.5, 0.4, 0.3, 0.2])
    assert run.fit(4, after_epoch=lambda progress: progress.stale >= 2).epoch == 3


def test_a_run_that_was_cut_off_goes_on_exactly(tmp_path: Path) -> None:
    whole = Run()
    expected = whole.fit(6)

    class CutOffError(Exception):
        pass

    cut = Run()
    train_epoch = cut.train_epoch

    def stop(epoch: int) -> dict[str, float]:
        if epoch == 3:
            raise CutOffError
        return train_epoch(epoch)

    cut.train_epoch = stop  # type: ignore[method-assign]
    file = tmp_path / "checkpoint.pt"
    with pytest.raises(CutOffError):
        cut.fit(6, checkpoint=file)
    torch.manual_seed(99)
    resumed = Run()
    found = resumed.fit(6, checkpoint=file)
    assert len(resumed.weights) == 3
    assert found == expected
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_run_that_had_stopped_does_not_start_again(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    Run(scores=[0.5, 0.4]).fit(9, after_epoch=lambda p: p.stale >= 1, checkpoint=file)
    again = Run()
    assert again.fit(9, checkpoint=file).epoch == 2
    assert again.weights == []


@pytest.mark.parametrize("score", [math.nan, -math.inf])
def test_diverged_score(score: float) -> None:
    with pytest.raises(DivergedError, match=r"validation score of epoch 2 .* lower"):
        Run(scores=[0.5, score]).fit(3)


def test_diverged_loss() -> None:
    run = Run()
    run.train_epoch = lambda epoch: {"loss": math.nan}  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match="training loss of epoch 1 is nan"):
        run.fit(3)


def test_broken_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"checkpoint\.pt is truncated or corrupt; delete it"):
        Run().fit(2, checkpoint=file)


def test_epoch_generator() -> None:
    def draw(seed: int, epoch: int) -> list[int]:
        return torch.randperm(20, generator=epoch_generator(seed, epoch)).tolist()

    assert draw(1, 2) == draw(1, 2)
    assert len({tuple(draw(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16

"""Training by epochs: the best weights on the validation set, checkpoints, an exact resume."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from tqdm import tqdm

from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.system.files import write_tensors

Values = dict[str, float]


@dataclass
class FitProgress:
    """Progress of a run.

    Attributes:
        epoch: epochs done.
        best_epoch: the one with the best score, counted from 1; the first of equals.
        best_score: its score, higher is better.
        history: number, training loss, score and further values of each epoch.
        seconds: time of training and evaluation, resumed runs included.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: float = -math.inf
    history: list[Values] = field(default_factory=list)
    seconds: float = field(default=0.0, compare=False)

    @property
    def stale(self) -> int:
        """Epochs since the best one."""
        return self.epoch - self.best_epoch


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    train_epoch: Callable[[int], Values],
    evaluate: Callable[[], Values],
    *,
    epochs: int,
    after_epoch: Callable[[FitProgress], bool] | None = None,
    checkpoint: Path | None = None,
    label: str = "",
) -> FitProgress:
    """Train, evaluate after every epoch, and leave the weights of the best epoch in the model.

    Args:
        model: set to train() before `train_epoch` and to eval() before `evaluate`.
        optimizer: its state is part of the checkpoint.
        train_epoch: trains epoch k = 0, 1, ... and returns at least its mean "loss". Draw the
            order of the data from `epoch_generator` to make resumption exact.
        evaluate: returns at least "score", higher is better.
        epochs: maximum number of epochs.
        after_epoch: called with the progress; may change learning rates; True ends the training.
        checkpoint: file written atomically after every epoch; if it exists, training resumes from
            it.
        label: title of the progress bar, shown only on a terminal.

    Raises:
        DivergedError: a training loss or a score is NaN or infinite.
        ValueError: the checkpoint cannot be read.
    """
    progress, best, stopped = FitProgress(), _copy(model), False
    if checkpoint is not None and checkpoint.exists():
        content = load_checkpoint(checkpoint)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        progress = FitProgress(**content["progress"])
        best, stopped = content["best"], content["stopped"]
        restore_random(content)
    with tqdm(
        initial=progress.epoch, total=epochs, desc=label, unit="epoch", leave=False, disable=None
    ) as bar:
        while progress.epoch < epochs and not stopped:
            started = time.perf_counter()
            model.train()
            values = train_epoch(progress.epoch)
            _check(values["loss"], "training loss", progress.epoch)
            model.eval()
            values |= evaluate()
            _check(values["score"], "validation score", progress.epoch)
            progress.epoch += 1
            progress.history.append({"epoch": progress.epoch, **values})
            if values["score"] > progress.best_score:
                progress.best_score, progress.best_epoch = values["score"], progress.epoch
                best = _copy(model)
            progress.seconds += time.perf_counter() - started
            stopped = after_epoch is not None and after_epoch(progress)
            if checkpoint is not None:
                content = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "best": best,
                    "progress": asdict(progress),
                    "stopped": stopped,
                }
                save_checkpoint(checkpoint, content)
            bar.set_postfix(loss=f"{values['loss']:.4g}", best=f"{progress.best_score:.4g}")
            bar.update()
    model.load_state_dict(best)
    model.eval()
    return progress


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """Return a generator that depends only on seed and epoch, so a resumed epoch is the same."""
    return torch.Generator().manual_seed(seed + 1_000_003 * epoch)


def _check(value: float, name: str, epoch: int) -> None:
    if not math.isfinite(value):
        raise DivergedError(
            f"the {name} of epoch {epoch + 1} is {value}: training has diverged; lower "
            "train.learning_rate"
        )


def _copy(model: nn.Module) -> dict[str, Any]:
    return copy.deepcopy(model.state_dict())


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write the content, and the state of torch's generators, atomically."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    write_tensors(path, {**content, "random": {"cpu": torch.get_rng_state(), "cuda": cuda}})


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, on the CPU; end by `restore_random` of it.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the type depends on the damage to the file
        raise ValueError(
            f"output_dir={path.parent}: {path.name} is truncated or corrupt; delete it to start "
            "the run again"
        ) from error
    return content


def restore_random(content: dict[str, Any]) -> None:
    """Set torch's generators as they were when the checkpoint was written."""
    torch.set_rng_state(content["random"]["cpu"])
    if content["random"]["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(content["random"]["cuda"])

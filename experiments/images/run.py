"""One run: its parts, training by Nesterov SGD, and the final evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.images.config import CLASSES, ImageRunConfig
from experiments.images.criteria import Criterion, check_start, make_criterion
from experiments.images.data.base import Images, Splits, load_splits
from experiments.images.networks import make_network
from sparse_attn.engine.fitting import FitProgress, epoch_generator, fit
from sparse_attn.system.machine import choose_device, device_name, versions
from sparse_attn.system.run_folders import CHECKPOINT_FILE

EVALUATION_BATCH = 1000
# weight of the criterion, which breaks ties of accuracy
TIE = 1e-6


class Classifier(nn.Module):
    """A network and its criterion, whose mapping may have learned parameters."""

    def __init__(self, network: nn.Module, criterion: Criterion) -> None:
        super().__init__()
        self.network = network
        self.criterion = criterion

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores: [B, channels, height, width] uint8 to [B, classes]."""
        return self.network(pixels)


@dataclass
class ImageRun:
    """A run, ready to perform.

    The learning rate is halved after every `patience` epochs without a better validation score, and
    training stops after `stop_after` such epochs.
    """

    config: ImageRunConfig
    splits: Splits
    model: Classifier
    device: torch.device

    def __post_init__(self) -> None:
        config, to = self.config.train, self.device
        self.train, self.validation = self.splits.train.to(to), self.splits.validation.to(to)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            nesterov=config.momentum > 0,
        )

    def perform(self, folder: Path) -> dict[str, Any]:
        """Train, evaluate the best weights and return the content of results.json.

        Args:
            folder: folder of the checkpoint that `fit` writes and resumes from.

        Raises:
            DivergedError: a loss is NaN or infinite.
        """
        config, model = self.config, self.model
        progress = fit(
            model,
            self.optimizer,
            self._epoch,
            self._evaluate,
            epochs=config.train.epochs,
            after_epoch=self._slow_down,
            checkpoint=folder / CHECKPOINT_FILE,
            label="Training",
        )
        return {
            "data": config.data.name,
            "loss": config.loss.name,
            "measure": model.criterion.measure,
            "score": progress.best_score,
            "validation": measure(model, self.validation),
            "test": measure(model, self.splits.test.to(self.device)) if config.test else None,
            "epochs": progress.epoch,
            "best_epoch": progress.best_epoch,
            "history": progress.history,
            "images": self.splits.sizes(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "seconds": progress.seconds,
            "seed": config.train.seed,
            "device": device_name(self.device),
            "versions": versions("torch"),
        }

    def _epoch(self, epoch: int) -> dict[str, float]:
        generator = epoch_generator(self.config.train.seed, epoch)
        order = torch.randperm(len(self.train), generator=generator)
        total = torch.zeros((), device=self.train.labels.device)
        for rows in order.split(self.config.train.batch_size):
            images = self.train.take(rows.to(total.device))
            pixels = images.pixels
            if self.config.train.flip:
                pixels = _mirrored(pixels, torch.rand(len(rows), generator=generator) < 0.5)
            losses = self.model.criterion.loss(self.model(pixels), images.labels)
            self.optimizer.zero_grad()
            losses.mean().backward()
            self.optimizer.step()
            total += losses.detach().sum()
        return {
            "loss": total.item() / len(self.train),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }

    def _evaluate(self) -> dict[str, float]:
        measured = measure(self.model, self.validation)
        accuracy = 1 - measured["error"]
        return {"score": accuracy - TIE * measured["criterion"], **measured}

    def _slow_down(self, progress: FitProgress) -> bool:
        if progress.stale and progress.stale % self.config.train.patience == 0:
            for group in self.optimizer.param_groups:
                group["lr"] /= 2
        return progress.stale >= self.config.train.stop_after


def _mirrored(pixels: Tensor, chosen: Tensor) -> Tensor:
    """Flip the chosen images ([B] of bool) horizontally."""
    return torch.where(chosen.to(pixels.device)[:, None, None, None], pixels.flip(-1), pixels)


@torch.no_grad()
def measure(model: Classifier, images: Images) -> dict[str, float]:
    """Means over the images.

    Returns:
        criterion: the reported loss; error: share of wrong classes; negll: -log p of the true class
        in nats, if the criterion has probabilities; infinite if one of them is 0.
    """
    criterion = model.criterion
    sums: dict[str, float] = {}
    batches = zip(
        images.pixels.split(EVALUATION_BATCH), images.labels.split(EVALUATION_BATCH), strict=True
    )
    for pixels, labels in batches:
        scores = model(pixels)
        rows = {
            "criterion": criterion.reported(scores, labels),
            "error": (criterion.predictions(scores) != labels).double(),
        }
        log_p = criterion.log_p(scores)
        if log_p is not None:
            rows["negll"] = -log_p.gather(-1, labels[:, None])
        for name, values in rows.items():
            sums[name] = sums.get(name, 0.0) + values.double().sum().item()
    return {name: value / len(images) for name, value in sums.items()}


def assemble(config: ImageRunConfig) -> ImageRun:
    """Build a run.

    Raises:
        ValueError, TypeError, OSError: invalid config, images or loss.
    """
    device = choose_device(config.device)
    criterion = make_criterion(config.loss)
    check_start(criterion, CLASSES[config.data.name], config.network.output_std)
    splits = load_splits(config.data, config.train.seed)
    # the same initial weights for every loss
    torch.manual_seed(config.train.seed)
    network = make_network(config.data.name, config.network)
    return ImageRun(config, splits, Classifier(network, criterion).to(device), device)

"""Epochs over images: steps of Nesterov's gradient descent, and what is measured after them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.images.config import TrainConfig
from experiments.images.criteria import Criterion
from experiments.images.data.base import Images
from pipeline.fitting import Progress, epoch_generator, fit

EVALUATION_BATCH = 1000
# in the score, so that of two equal accuracies the one with the lower criterion is better
TIE = 1e-6


class Classifier(nn.Module):
    """A network and its criterion, whose mapping may have parameters that are learned too."""

    def __init__(self, network: nn.Module, criterion: Criterion) -> None:
        super().__init__()
        self.network = network
        self.criterion = criterion

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores: [B, channels, height, width] uint8 to [B, classes]."""
        return self.network(pixels)


class Training:
    """One training of a classifier.

    The learning rate is halved after every `patience` epochs without a better validation score, and
    training stops after `stop_after` such epochs.

    Args:
        model: on its device.
        train: training images, on that device.
        validation: what the score is measured on.
        config: how to train.
    """

    def __init__(
        self, model: Classifier, train: Images, validation: Images, config: TrainConfig
    ) -> None:
        self.model = model
        self.train = train
        self.validation = validation
        self.config = config
        self.optimizer = torch.optim.SGD(
            model.parameters(),
            config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            nesterov=config.momentum > 0,
        )

    def run(self, checkpoint: Path | None = None) -> Progress:
        """Train, and leave the weights of the best epoch in the model; raises as `fit`."""
        return fit(
            self.model,
            self.optimizer,
            self._epoch,
            self._evaluate,
            epochs=self.config.epochs,
            after_epoch=self._slow_down,
            checkpoint=checkpoint,
            label="Training",
        )

    def _epoch(self, epoch: int) -> dict[str, float]:
        generator = epoch_generator(self.config.seed, epoch)
        order = torch.randperm(len(self.train), generator=generator)
        total = torch.zeros((), device=self.train.labels.device)
        for rows in order.split(self.config.batch_size):
            images = self.train.take(rows.to(total.device))
            pixels = images.pixels
            if self.config.flip:
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

    def _slow_down(self, progress: Progress) -> bool:
        if progress.stale and progress.stale % self.config.patience == 0:
            for group in self.optimizer.param_groups:
                group["lr"] /= 2
        return progress.stale >= self.config.stop_after


def _mirrored(pixels: Tensor, chosen: Tensor) -> Tensor:
    """The images [B, channels, height, width], those that are chosen [B] left to right."""
    return torch.where(chosen.to(pixels.device)[:, None, None, None], pixels.flip(-1), pixels)


@torch.no_grad()
def measure(model: Classifier, images: Images) -> dict[str, float]:
    """Means over the images.

    Returns:
        criterion: what the criterion reports; error: share of wrong classes; negll: -log p of the
        true class in nats, where there are probabilities; infinite where one of them is 0.
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

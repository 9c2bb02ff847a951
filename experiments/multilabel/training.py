"""Training with Adam; epoch and threshold by the validation set, then one look at the test set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from experiments.multilabel.config import RunConfig
from experiments.multilabel.data.base import Batch, LabelledData
from experiments.multilabel.measures import f1_scores, micro_f1_by_threshold
from experiments.multilabel.models import head_of
from pipeline.batches import EpochSampler
from pipeline.fitting import Progress, epoch_generator, fit
from pipeline.machine import choose_device, device_name, versions

PACKAGES = ("torch", "transformers", "scikit-learn")


class Training:
    """One run: a model, its data and how it is trained.

    Args:
        config: of the run.
        model: as `build_model` makes it.
        data: with the labels of the model.

    Raises:
        ValueError, TypeError: what is wrong with the schedule or the device.
    """

    def __init__(self, config: RunConfig, model: nn.Module, data: LabelledData) -> None:
        self.config = config
        self.schedule = config.method.sparsity_schedule()
        self.device = choose_device(config.train.device)
        self.model = model.to(self.device)
        self.head = head_of(model)
        self.data = data
        self.thresholds = config.method.thresholds or [self.head.threshold]
        self.optimizer = torch.optim.Adam(model.parameters(), config.train.learning_rate)

    def run(self, checkpoint: Path | None = None) -> dict[str, Any]:
        """Train, choose, measure; the model is then that of the best epoch, with its threshold."""
        progress = fit(
            self.model,
            self.optimizer,
            self.train_epoch,
            self.evaluate,
            epochs=self.config.train.epochs,
            checkpoint=checkpoint,
            label=self.config.method.mapping,
        )
        self._ramp(progress.best_epoch)  # no weight of those that `fit` brings back
        validation = micro_f1_by_threshold(*self.predict(self.data.validation), self.thresholds)
        self.head.threshold = max(validation, key=validation.__getitem__)
        return {
            "score": progress.best_score,
            **self.measure(),
            "threshold": self.head.threshold,
            "validation_by_threshold": validation,
            "parameters": self._parameters(),
            "labels": list(self.data.labels),
            "best_epoch": progress.best_epoch,
            "history": _columns(progress),
            "seconds": round(progress.seconds, 2),
            "seed": self.config.train.seed,
            "device": device_name(self.device),
            "versions": versions(*PACKAGES),
        }

    def train_epoch(self, epoch: int) -> dict[str, float]:
        """One pass in an order that depends on seed and epoch alone; the mean loss of a row."""
        batches = self._batches(self.data.train, **self._order(epoch))
        total, rows = torch.zeros((), device=self.device), 0
        for step, batch in enumerate(batches):
            self._ramp(epoch + step / len(batches))
            self.optimizer.zero_grad()
            loss = self.model(**self._here(batch)).loss
            loss.backward()
            self.optimizer.step()
            size = len(batch["labels"])
            total, rows = total + size * loss.detach(), rows + size
        self._ramp(epoch + 1)
        return {"loss": total.item() / rows}

    def _ramp(self, epochs: float) -> None:
        """Set the scheduled parameter to its value after so many epochs."""
        if self.schedule is not None:
            self.schedule.apply(self.head, epochs / self.config.train.epochs)

    def evaluate(self) -> dict[str, float]:
        """`score`: micro-F1 on the validation set at the best threshold."""
        found = micro_f1_by_threshold(*self.predict(self.data.validation), self.thresholds)
        return {"score": max(found.values())}

    def measure(self) -> dict[str, Any]:
        """F1, micro-F1 at every threshold and the mean number of labels.

        On the test set; without one on the validation set, whose F1 the choices have raised.
        """
        log_p, target = self.predict(self.data.test)
        decided = self.head.decide(log_p)
        return {
            "measured_on": "validation" if self.data.test is self.data.validation else "test",
            "f1": f1_scores(decided, target),
            "micro_by_threshold": micro_f1_by_threshold(log_p, target, self.thresholds),
            "decided_labels": decided.sum(-1).float().mean().item(),
            "true_labels": target.sum(-1).mean().item(),
        }

    @torch.no_grad()
    def predict(self, rows: Dataset[Batch]) -> tuple[Tensor, Tensor]:
        """log p and the labels of all rows, [N, n] each, on the CPU."""
        found = []
        for batch in self._batches(rows):
            inputs = {name: part for name, part in self._here(batch).items() if name != "labels"}
            found.append((self.model(**inputs).logits.float().cpu(), batch["labels"]))
        log_p, target = zip(*found, strict=True)
        return torch.cat(log_p), torch.cat(target)

    def _order(self, epoch: int) -> dict[str, Any]:
        """What a `DataLoader` takes for the order of an epoch's rows."""
        train = self.config.train
        if self.data.lengths is None:
            return {"shuffle": True, "generator": epoch_generator(train.seed, epoch)}
        sampler = EpochSampler(self.data.lengths, train.batch_size, train.seed)
        sampler.set_epoch(epoch)
        return {"sampler": sampler}

    def _batches(self, rows: Dataset[Batch], **order: Any) -> DataLoader[Batch]:
        """As they stand, if no order is given."""
        return DataLoader(
            rows,
            batch_size=self.config.train.batch_size,
            collate_fn=self.data.collate,
            num_workers=self.config.train.workers,
            **order,
        )

    def _here(self, batch: Batch) -> Batch:
        return {name: part.to(self.device) for name, part in batch.items()}

    def _parameters(self) -> dict[str, float]:
        """The values that learned and scheduled parameters of the mapping have come to."""
        mapping = getattr(self.head, "mapping", None)
        return {} if mapping is None else mapping.parameter_values()


def _columns(progress: Progress) -> dict[str, list[float]]:
    """Loss and score of every epoch."""
    return {
        name: [round(values[name], 5) for values in progress.history] for name in ("loss", "score")
    }

"""One run: Adam, epoch and threshold chosen on the validation set, one test evaluation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiments.multilabel.config import MultilabelRunConfig
from experiments.multilabel.data.base import Batch, LabelledData
from experiments.multilabel.data.config import DataConfig
from experiments.multilabel.measures import f1_scores, micro_f1_by_threshold
from experiments.multilabel.models import Classifier, build_model
from sparse_attn.engine.command import from_dict
from sparse_attn.engine.fitting import epoch_generator, fit
from sparse_attn.heads import MultiLabelHead
from sparse_attn.system.machine import choose_device, device_name, peak_memory_mib, versions
from sparse_attn.system.run_folders import CHECKPOINT_FILE, RESULTS_FILE

MODEL_FILE = "model.safetensors"


def assemble(config: MultilabelRunConfig) -> MultilabelRun:
    """Read the data and build the model.

    The initial weights depend only on the seed, and those below the head not on the method.

    Raises:
        ValueError, TypeError, OSError: invalid config or data.
    """
    data = load_data(config, config.train.seed)
    torch.manual_seed(config.train.seed)
    return MultilabelRun(config, build_model(config, config.method, len(data.labels)), data)


def load_data(config: DataConfig, seed: int) -> LabelledData:
    """Read the data set, or draw synthetic rows by the seed.

    Raises:
        ValueError, OSError: invalid config or files.
    """
    # each kind needs its own extra or a slow import
    if config.synthetic is not None:
        from experiments.multilabel.data.synthetic import load_synthetic

        return load_synthetic(config.synthetic, seed)
    from experiments.multilabel.data.images import load_images

    assert config.images is not None  # the config has exactly one of two
    return load_images(config.images)


class MultilabelRun:
    """One run: a model, its data and its training.

    Args:
        config: config of the run.
        model: model by `build_model`.
        data: the parts, with the labels of the model.

    Raises:
        ValueError, TypeError: invalid schedule or device.
    """

    def __init__(self, config: MultilabelRunConfig, model: Classifier, data: LabelledData) -> None:
        self.config = config
        self.schedule = config.method.sparsity_schedule()
        self.device = choose_device(config.train.device)
        self.model = model.to(self.device)
        self.head = model.head
        self.data = data
        self.thresholds = config.method.thresholds or [self.head.threshold]
        self.optimizer = torch.optim.Adam(model.parameters(), config.train.learning_rate)

    def perform(self, folder: Path) -> dict[str, Any]:
        """Train, choose and measure; leave the model at its best epoch and threshold.

        Args:
            folder: folder for checkpoint and model, if the config keeps them.

        Raises:
            DivergedError: the loss is NaN or infinite.
        """
        train, method = self.config.train, self.config.method
        kept = folder if self.config.keep_model else None
        progress = fit(
            self.model,
            self.optimizer,
            self.train_epoch,
            self.evaluate,
            epochs=train.epochs,
            after_epoch=lambda progress: progress.stale >= (train.stop_after or math.inf),
            checkpoint=kept and kept / CHECKPOINT_FILE,
            label=method.mapping,
        )
        self._ramp(progress.best_epoch)  # not part of the weights that `fit` restores
        validation = micro_f1_by_threshold(*self.predict(self.data.validation), self.thresholds)
        self.head.threshold = max(validation, key=validation.__getitem__)
        mapping = getattr(self.head, "mapping", None)
        results = {
            "score": progress.best_score,
            **self.measure(),
            "threshold": self.head.threshold,
            "validation_by_threshold": validation,
            "parameters": {} if mapping is None else mapping.parameter_values(),
            "labels": list(self.data.labels),
            "best_epoch": progress.best_epoch,
            "history": {
                name: [round(values[name], 5) for values in progress.history]
                for name in ("loss", "score")
            },
            "seconds": round(progress.seconds, 2),
            "seed": train.seed,
            "device": device_name(self.device),
            "versions": versions("torch", "transformers", "scikit-learn"),
        }
        if folder is not None:  # peak of this run only if it has its own process
            results["peak_memory_mib"] = round(peak_memory_mib(self.device))
        if kept is not None:
            save_model(self.model, str(kept / MODEL_FILE))
        return results

    def train_epoch(self, epoch: int) -> dict[str, float]:
        """Train for one pass in an order fixed by seed and epoch; return the mean loss."""
        generator = epoch_generator(self.config.train.seed, epoch)
        batches = self._batches(self.data.train, shuffle=True, generator=generator)
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
        """Set the scheduled parameter to its value after `epochs`."""
        if self.schedule is not None:
            self.schedule.apply(self.head, epochs / self.config.train.epochs)

    def evaluate(self) -> dict[str, float]:
        """Return `score`: micro-F1 on the validation set at the best threshold."""
        found = micro_f1_by_threshold(*self.predict(self.data.validation), self.thresholds)
        return {"score": max(found.values())}

    def measure(self) -> dict[str, Any]:
        """Return F1, micro-F1 at every threshold and the mean number of labels.

        They are for the test set, or without one for the validation set, where F1 is biased upwards
        by the choices.
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
        """Return log p and the labels of all rows, [N, n] each, on the CPU."""
        found = []
        for batch in self._batches(rows):
            inputs = {name: part for name, part in self._here(batch).items() if name != "labels"}
            found.append((self.model(**inputs).logits.float().cpu(), batch["labels"]))
        log_p, target = zip(*found, strict=True)
        return torch.cat(log_p), torch.cat(target)

    def _batches(self, rows: Dataset[Batch], **order: Any) -> DataLoader[Batch]:
        """Batches of rows, in sequence by default."""
        return DataLoader(
            rows,
            batch_size=self.config.train.batch_size,
            collate_fn=self.data.collate,
            num_workers=self.config.train.workers,
            **order,
        )

    def _here(self, batch: Batch) -> Batch:
        return {name: part.to(self.device) for name, part in batch.items()}


def load(folder: str | Path) -> Classifier:
    """Load the model of a finished run, with its threshold, in eval mode.

    Args:
        folder: the run's output_dir.

    Raises:
        ValueError: no finished run, or one that kept no model.
    """
    try:
        results = json.loads((Path(folder) / RESULTS_FILE).read_text(encoding="utf-8"))
        config = from_dict(MultilabelRunConfig, results["config"])
        model = build_model(config, config.method, len(results["labels"]))
        load_model(model, str(Path(folder) / MODEL_FILE))
    except OSError as error:
        raise ValueError(
            f"folder={folder}: expected the output_dir of a finished run that kept its model "
            f"({error})"
        ) from None
    model.head.threshold = results["threshold"]
    if config.method.schedule is not None:
        parameter = config.method.schedule.parameter
        head = cast(MultiLabelHead, model.head)
        head.set_parameter(parameter, results["parameters"][parameter])
    return model.eval()

"""One run: Adam, epoch and threshold by the validation set, then one look at the test set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from experiments.multilabel.config import RunConfig
from experiments.multilabel.data.base import Batch, LabelledData
from experiments.multilabel.data.config import DataConfig
from experiments.multilabel.measures import f1_scores, micro_f1_by_threshold
from experiments.multilabel.models import build_model, head_of
from glue.model import resolve_model
from pipeline.batches import EpochSampler
from pipeline.command import from_dict
from pipeline.fitting import epoch_generator, fit
from pipeline.folders import CHECKPOINT_FILE, RESULTS_FILE
from pipeline.machine import choose_device, device_name, peak_memory_mib, versions
from sparse_attn import load_pretrained
from sparse_attn.heads import MultiLabelHead

MODEL_FILE = "model.safetensors"
MODEL_FOLDER = "model"


def assemble(config: RunConfig) -> Run:
    """Read the data and build the model.

    The first weights depend on the seed alone, and below the head not on the method.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the config or the data.
    """
    data = load_data(config, config.train.seed)
    torch.manual_seed(config.train.seed)
    return Run(config, build_model(config, config.method, len(data.labels)), data)


def load_data(config: DataConfig, seed: int) -> LabelledData:
    """Read the data set; the seed draws synthetic rows, other data sets have none.

    Raises:
        ValueError, OSError: what is wrong with the config or the files.
    """
    # each kind needs an extra or a slow import of its own
    if config.synthetic is not None:
        from experiments.multilabel.data.synthetic import load_synthetic

        return load_synthetic(config.synthetic, seed)
    if config.images is not None:
        from experiments.multilabel.data.images import load_images

        return load_images(config.images)
    assert config.text is not None  # one of three, as the config has checked
    from experiments.multilabel.data.text import load_text

    return load_text(config.text)


class Run:
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

    def perform(self, folder: Path | None = None) -> dict[str, Any]:
        """Train, choose, measure; the model is then that of the best epoch, with its threshold.

        Args:
            folder: where checkpoint and model go, unless the config keeps none; None for none.

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
            checkpoint=kept and kept / CHECKPOINT_FILE,
            label=method.mapping,
        )
        self._ramp(progress.best_epoch)  # no weight of those that `fit` brings back
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
        if folder is not None:  # of a process that has done this run alone
            results["peak_memory_mib"] = round(peak_memory_mib(self.device))
        if kept is not None:
            self._save(kept)
        return results

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

    def _save(self, folder: Path) -> None:
        """A patched Transformer and its tokenizer for `load_pretrained`, others in one file."""
        model, labels, text = self.model, self.data.labels, self.config.text
        if text is None or not isinstance(model, PreTrainedModel):
            save_model(model, str(folder / MODEL_FILE))
            return
        model.config.id2label = dict(enumerate(labels))
        model.config.label2id = {label: number for number, label in enumerate(labels)}
        model.save_pretrained(folder / MODEL_FOLDER)
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(text.model))
        tokenizer.save_pretrained(folder / MODEL_FOLDER)


def load(folder: str | Path) -> nn.Module:
    """The model that a finished run has kept, with its threshold, in evaluation mode.

    A text model with a mapping is also what `sparse_attn.load_pretrained` makes of folder/model.

    Args:
        folder: output_dir of the run.

    Raises:
        ValueError: no finished run there, or one that kept no model.
    """
    try:
        results = json.loads((Path(folder) / RESULTS_FILE).read_text(encoding="utf-8"))
        patched = Path(folder) / MODEL_FOLDER
        if patched.is_dir():
            return load_pretrained(AutoModelForSequenceClassification, patched).eval()
        config = from_dict(RunConfig, results["config"])
        model = build_model(config, config.method, len(results["labels"]))
        load_model(model, str(Path(folder) / MODEL_FILE))
    except OSError as error:
        raise ValueError(
            f"folder={folder}: expected the output_dir of a finished run that kept its model "
            f"({error})"
        ) from None
    head = head_of(model)
    head.threshold = results["threshold"]
    if config.method.schedule is not None:
        parameter = config.method.schedule.parameter
        cast(MultiLabelHead, head).set_parameter(parameter, results["parameters"][parameter])
    return model.eval()

"""Subclass of Transformers' Trainer for a run: order of the batches, loss, measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainingArguments,
)
from transformers.integrations import get_available_reporting_integrations

from sparse_attn.engine.batches import EpochSampler
from sparse_attn.inspection import AttentionRecord, ZeroCounts, record_attention
from sparse_attn.system.files import disk_errors

from .config import RunConfig
from .progress import ProgressLines


class EpochTrainer(Trainer):
    """Trainer that uses `EpochSampler`, is exact in any number of processes, and counts zeros."""

    record: AttentionRecord
    sparsity: ZeroCounts

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for replaced in (ProgressCallback, PrinterCallback):
            self.remove_callback(replaced)
        self.progress = ProgressLines()
        self.add_callback(self.progress)
        # BERT and others accept the number of items but ignore it: their loss is a mean over the
        # batch, which Trainer would multiply by the number of processes
        self.model_accepts_loss_kwargs = False
        if self.is_fsdp_enabled:
            settle_fsdp(self.accelerator.state.fsdp_plugin, self.model)

    # private: only a whole DataLoader can be replaced publicly
    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        lengths = [len(ids) for ids in self.train_dataset["input_ids"]]
        step = self.args.train_batch_size * self.args.world_size
        return EpochSampler(lengths, step, self.args.seed)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return the model's loss without the repeats that fill an uneven last batch."""
        share = 1.0
        if model.training and self._is_uneven():
            own = self._count_unrepeated(inputs)
            # Trainer averages over processes, which have different numbers of examples
            share = own * self.args.world_size / self.accelerator.gradient_state.remainder
            # a process with repeats only keeps one at share 0, because all must take the step
            inputs = {name: tensor[: max(own, 1)] for name, tensor in inputs.items()}
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        return loss if share == 1.0 else loss * share

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.record.rows = self._count_unrepeated(inputs) if self._is_uneven() else None
        return super().prediction_step(model, inputs, *args, **kwargs)

    def _is_uneven(self) -> bool:
        """Return whether accelerate has filled up this last step with repeats."""
        state = self.accelerator.gradient_state
        return bool(state.end_of_dataloader and state.remainder > 0)

    def _count_unrepeated(self, inputs: dict[str, Any]) -> int:
        """Count this process's examples of an uneven step that are no repeats."""
        size = len(inputs["labels"])
        before = size * self.args.process_index
        return min(max(self.accelerator.gradient_state.remainder - before, 0), size)

    # private: callbacks run only after the files are written
    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        path = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with disk_errors(path):
            super()._save_checkpoint(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        with record_attention(self.model) as self.record:
            output = super().evaluation_loop(*args, **kwargs)
        counts = self.record.zero_counts.counts.to(self.args.device)
        self.sparsity = ZeroCounts(self.accelerator.reduce(counts))
        prefix = kwargs.get("metric_key_prefix", "eval")
        output.metrics[f"{prefix}_sparsity"] = self.sparsity.mean
        # Trainer's loss is a mean over batches and includes the repeats of the last one
        output.metrics[f"{prefix}_loss"] = mean_loss(output.predictions, output.label_ids)
        return output


def settle_fsdp(plugin: Any, model: PreTrainedModel) -> None:
    """Set FSDP to shard the model by block and save it whole; accelerate's defaults do neither."""
    if plugin.transformer_cls_names_to_wrap is None:
        # _no_split_modules also names BertEmbeddings, where accelerate 1.15 would shard the word
        # embeddings a second time and torch would raise
        embedding = model.get_input_embeddings()
        plugin.transformer_cls_names_to_wrap = sorted(
            {
                type(module).__name__
                for module in model.modules()
                # private: Transformers names the classes of its blocks only there
                if type(module).__name__ in (model._no_split_modules or ())
                and embedding not in module.modules()
            }
        )
    # Trainer.save_model silently writes nothing for a sharded state dict
    plugin.state_dict_config = plugin.optim_state_dict_config = None
    plugin.set_state_dict_type("FULL_STATE_DICT")


def mean_loss(predictions: Any, labels: Any) -> float:
    """Return the mean cross-entropy of the examples, or squared error for one logit."""
    outputs = predictions[0] if isinstance(predictions, tuple) else predictions
    logits, target = torch.as_tensor(outputs).double(), torch.as_tensor(labels)
    if logits.shape[-1] == 1:
        return F.mse_loss(logits.squeeze(-1), target.double()).item()
    return F.cross_entropy(logits, target).item()


def trackers(report_to: str | list[str]) -> list[str]:
    """Return the names of the trackers, checked to be installed.

    Raises:
        ValueError: a tracker is not installed.
    """
    names = [report_to] if isinstance(report_to, str) else report_to
    installed = get_available_reporting_integrations()
    for name in names:
        if name not in (*installed, "none"):
            raise ValueError(
                f"report_to={name!r}: expected none, or trackers that Trainer knows and that are "
                f"installed, which are {', '.join(installed)}"
            )
    return [name for name in names if name != "none"]


def training_arguments(config: RunConfig) -> TrainingArguments:
    """Return Trainer's arguments: evaluate and save after every epoch, log to report_to."""
    train = config.train
    arguments = TrainingArguments(
        output_dir=config.output_dir,
        num_train_epochs=train.epochs,
        max_steps=train.max_steps or -1,
        learning_rate=train.learning_rate,
        per_device_train_batch_size=train.batch_size,
        per_device_eval_batch_size=2 * train.batch_size,
        warmup_steps=train.warmup_ratio,
        weight_decay=train.weight_decay,
        seed=train.seed,
        bf16=train.mixed_precision == "bf16",
        fp16=train.mixed_precision == "fp16",
        eval_strategy="epoch" if config.evaluate == "epoch" else "no",
        save_strategy="epoch" if config.keep_model else "no",
        save_total_limit=2,
        logging_steps=10,
        report_to=trackers(config.report_to) if config.keep_model else [],
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    # only `accelerate launch` uses several GPUs; Trainer would spread one process over all of them
    # private: n_gpu has no setter
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments

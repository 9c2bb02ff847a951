"""Callback of Trainer that logs what the attention of a model does while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sparse_attn.inspection.recording import record_attention

if TYPE_CHECKING:
    from transformers import Trainer


class AttentionStatistics(TrainerCallback):
    """Logs what each layer's attention does on a fixed batch: zeros, support and entropy.

    After every `every_steps` steps the model reads the batch without dropout and without drawing
    random numbers, so a run has the same weights with and without this callback. The numbers are
    those of `record_attention`, means over the heads, as `attention/layer_<number>/<statistic>`.
    `trainer.log` takes them to the history and to all loggers. Add it to the Trainer it logs to:
    `trainer.add_callback(AttentionStatistics(trainer, batch))`.

    Args:
        trainer: the Trainer, because only its `log` reaches the loggers that run before callbacks.
        batch: inputs of the model by name, tensors, on any device.
        every_steps: number of optimizer steps from one measurement to the next, 100 by default.
        special_ids: ids of special tokens, such as `tokenizer.all_special_ids`, to log the mass on
            them as well.

    Raises:
        TypeError: the batch is not a mapping of names to tensors, or the trainer no Trainer.
        ValueError: every_steps is not a whole number of at least 1.
    """

    def __init__(
        self,
        trainer: Trainer,
        batch: Mapping[str, Tensor],
        every_steps: int = 100,
        special_ids: Iterable[int] | None = None,
    ) -> None:
        tensors = batch.values() if isinstance(batch, Mapping) else []
        if not tensors or not all(isinstance(value, Tensor) for value in tensors):
            raise TypeError(
                f"batch is a {type(batch).__name__}: expected tensors by name, such as "
                "tokenizer(texts, padding=True, return_tensors='pt')"
            )
        if not isinstance(every_steps, int) or every_steps < 1:
            raise ValueError(f"every_steps={every_steps!r}: expected a whole number of at least 1")
        if not callable(getattr(trainer, "log", None)):
            raise TypeError(f"trainer is a {type(trainer).__name__}: expected a Trainer")
        self.trainer, self.batch, self.every_steps = trainer, batch, every_steps
        self.special_ids = None if special_ids is None else list(special_ids)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step % self.every_steps:
            return
        model = kwargs["model"].eval()
        batch = {name: value.to(args.device) for name, value in self.batch.items()}
        with torch.no_grad(), record_attention(model, special_ids=self.special_ids) as record:
            model(**batch)
        model.train()
        names = ["zeros", "support", "entropy", *(["special"] if self.special_ids else [])]
        means = {name: getattr(record, name).nanmean(1).tolist() for name in names}
        waiting = control.should_log
        self.trainer.log(
            {
                f"attention/layer_{layer}/{name}": value
                for name, values in means.items()
                for layer, value in enumerate(values)
            }
        )
        # a log marks the loss of this step as logged, which is still to come
        control.should_log = waiting

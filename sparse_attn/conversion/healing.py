"""Heal a converted model: distil the softmax model into it on unlabelled texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState, ProgressCallback

from sparse_attn.conversion.plan import DIVERGED, Plan, correct, reach_targets, set_dials
from sparse_attn.conversion.states import distances, states_of
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.hf.checkpoints import last_complete_checkpoint
from sparse_attn.mappings import get_spec

EVERY = 20  # steps between corrections of the dials
SAVE_EVERY = 100  # steps
POOL = 20  # batches whose texts are sorted by length together


@dataclass(frozen=True)
class Recipe:
    """Training settings, arguments of `convert`."""

    steps: int = 300
    batch_size: int = 32
    learning_rate: float = 1e-4
    ramp: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = {
            "steps": (self.steps >= 0, "0, to choose without training, or more"),
            "batch_size": (self.batch_size >= 1, "at least 1"),
            "learning_rate": (0 < self.learning_rate < math.inf, "a finite number above 0"),
            "ramp": (0 <= self.ramp <= 1, "a share of the steps, in [0, 1]"),
        }
        for name, (holds, expected) in ranges.items():
            if not holds:
                raise ValueError(f"{name}={getattr(self, name)}: expected {expected}")


class InOrder(Dataset[dict[str, Any]]):
    """Texts in training order: batches of similar length, shuffled.

    The whole order is known at the start, so that a resumed run sees the same batches.

    Args:
        texts: tokenizer output of each text.
        steps, batch_size: steps, and texts per step over all processes.
    """

    def __init__(
        self, texts: Sequence[dict[str, Any]], steps: int, batch_size: int, seed: int
    ) -> None:
        self.texts = texts
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.tensor([len(text["input_ids"]) for text in texts])
        places: list[Tensor] = []
        while sum(map(len, places)) < steps * batch_size:
            places.append(torch.randperm(len(texts), generator=generator))
        batches: list[Tensor] = []
        for pool in torch.cat(places)[: steps * batch_size].split(POOL * batch_size):
            sorted_batches = pool[lengths[pool].argsort(stable=True)].split(batch_size)
            shuffled = torch.randperm(len(sorted_batches), generator=generator).tolist()
            batches += [sorted_batches[i] for i in shuffled]
        self.order = torch.cat(batches).tolist()

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.texts[self.order[place]]


def heal(
    model: PreTrainedModel,
    plan: Plan,
    recipe: Recipe,
    texts: Sequence[dict[str, Any]],
    sample: Sequence[dict[str, Tensor]],
    collate: Any,
    folder: Path,
    teacher: PreTrainedModel,
) -> None:
    """Train a converted model in place, resuming from the folder's last checkpoint.

    Args:
        plan: targets of the layers.
        texts: tokenizer output of each text.
        sample: batches to count zeros on.
        collate: makes a batch of texts.
        teacher: the model before conversion.
    """
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=recipe.steps,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        warmup_steps=0.1,
        seed=recipe.seed,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        save_steps=SAVE_EVERY,
        save_total_limit=2,
        logging_steps=10,
        report_to=[],
        use_cpu=model.device.type == "cpu",
        dataloader_pin_memory=model.device.type == "cuda",
    )
    # one GPU per process: Trainer would use all GPUs that it sees; `accelerate launch` is for
    # several
    # private: n_gpu has no setter
    arguments._n_gpu = min(arguments.n_gpu, 1)
    size = recipe.batch_size * arguments.world_size
    caches = getattr(model.config, "use_cache", False)
    zeros = KeepZeros(plan, sample, recipe.ramp)
    trainer = Healer(
        teacher=teacher,
        model=model,
        args=arguments,
        train_dataset=InOrder(texts, recipe.steps, size, recipe.seed),
        data_collator=collate,
        callbacks=[zeros],
    )
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(Bar(zeros))
    done = last_complete_checkpoint(folder)
    try:
        trainer.train(resume_from_checkpoint=done and str(done))
    finally:
        model.config.use_cache = caches  # Trainer turns it off, which would be saved
        for callback in trainer.callback_handler.callbacks:
            if getattr(callback, "training_bar", None) is not None:
                callback.training_bar.close()  # so that an error starts on a new line
    model.eval()
    if plan.keeps_zeros:
        reach_targets(model, plan, sample)


class Healer(Trainer):
    """Distils the softmax model into the converted one.

    Args:
        teacher: the model before conversion.
        **kwargs: arguments of Trainer.
    """

    def __init__(self, *, teacher: PreTrainedModel, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.teacher = teacher.to(self.args.device)
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return the mean distance of a batch's states from the teacher's."""
        # no dropout: the teacher's states have none, and few steps should not fit noise
        model.eval()
        with torch.no_grad():
            theirs = states_of(self.teacher, inputs)
        loss = distances(states_of(model, inputs), theirs, inputs["attention_mask"]).mean()
        if not loss.isfinite():
            raise DivergedError(DIVERGED.format("the loss is"))
        return loss


class Bar(ProgressCallback):
    """Progress bar that shows the loss, where Trainer's prints a dict at each log.

    Args:
        zeros: ramps the zeros in, while which the loss rises.
    """

    def __init__(self, zeros: KeepZeros) -> None:
        super().__init__()
        self.zeros = zeros

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.training_bar is not None and "loss" in logs:
            rises = ", rises while zeros are ramped in" * self.zeros.ramps(state)
            self.training_bar.set_postfix_str(f"loss={logs['loss']:.4f}{rises}")


class KeepZeros(TrainerCallback, ExportableState):
    """Ramps the dials of the layers, and holds their zeros while the weights change.

    Args:
        plan: targets of the layers.
        batches: texts to count zeros on.
        ramp: share of the steps after which all layers reach their targets, linearly.
    """

    def __init__(self, plan: Plan, batches: Sequence[dict[str, Tensor]], ramp: float) -> None:
        self.plan, self.batches, self.ramp = plan, batches, ramp

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # restore the offsets that Trainer saved
        for offset, layer in zip(_offsets(state), self.plan.layers, strict=False):
            layer.offset = offset
        set_dials(kwargs["model"], self.plan, self._share(state))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model, share = kwargs["model"], self._share(state)
        set_dials(model, self.plan, share)
        if state.global_step % EVERY == 0 and self.plan.keeps_zeros:
            correct(model, self.plan, self.batches, share)

    def state(self) -> dict[str, Any]:
        """Return the state that Trainer stores with a checkpoint."""
        return {"args": {}, "attributes": {"offsets": [own.offset for own in self.plan.layers]}}

    def ramps(self, state: TrainerState) -> bool:
        """Whether a dial is still on its way to its target."""
        has_dial = get_spec(self.plan.mapping).dial is not None
        converts = any(own.converted for own in self.plan.layers)
        return has_dial and converts and self._share(state) < 1

    def _share(self, state: TrainerState) -> float:
        """Return the share of the way to the target."""
        done = min(1.0, state.global_step / max(1, state.max_steps))
        return min(1.0, done / self.ramp) if self.ramp else 1.0


def _offsets(state: TrainerState) -> list[float]:
    if state.global_step == 0:
        return []
    kept = state.stateful_callbacks.get(KeepZeros.__name__, {})
    return kept["attributes"]["offsets"]

"""Heals a converted model: it learns to give what its softmax self gives for unlabelled text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from sparse_attn.hf.checkpoints import last_complete_checkpoint

EVERY = 20  # steps between corrections of the dials
SAVE_EVERY = 100  # steps
POOL = 20  # batches whose texts are sorted by length
Ramp = Callable[[float, int], list[float]]


@dataclass(frozen=True)
class Recipe:
    """How a model is healed; arguments of `convert`."""

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
    """Texts in the order of training: batches of similar length, at random.

    The whole order is known at the start, so that a resumed run sees the same batches.

    Args:
        texts: a tokenizer's output for each.
        steps, batch_size: of all processes together.
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


def together(ramp: float) -> Ramp:
    """All layers reach what they are to reach after the share `ramp` of the steps, linearly."""
    return lambda done, layers: [min(1.0, done / ramp) if ramp else 1.0] * layers


def heal(
    model: PreTrainedModel,
    plan: Plan,
    recipe: Recipe,
    texts: Sequence[dict[str, Any]],
    sample: Sequence[dict[str, Tensor]],
    collate: Any,
    folder: Path,
    healer: type[Trainer],
    ramp: Ramp | None = None,
    **kwargs: Any,
) -> None:
    """Train a converted model in place, from the last checkpoint in the folder if there is one.

    Args:
        plan: what its layers are to reach.
        texts: a tokenizer's output for each.
        sample: batches on which zeros are counted.
        collate: texts to a batch.
        healer: has the loss.
        ramp: `together` by default.
        **kwargs: of the healer.
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
    # several GPUs are for `accelerate launch`; Trainer would spread one process over all it sees
    # private: n_gpu has no setter
    arguments._n_gpu = min(arguments.n_gpu, 1)
    size = recipe.batch_size * arguments.world_size
    caches = getattr(model.config, "use_cache", False)
    trainer = healer(
        model=model,
        args=arguments,
        train_dataset=InOrder(texts, recipe.steps, size, recipe.seed),
        data_collator=collate,
        callbacks=[KeepZeros(plan, sample, ramp or together(recipe.ramp))],
        **kwargs,
    )
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(Bar)
    done = last_complete_checkpoint(folder)
    try:
        trainer.train(resume_from_checkpoint=done and str(done))
    finally:
        model.config.use_cache = caches  # Trainer turns it off, which would be saved
        for callback in trainer.callback_handler.callbacks:
            if getattr(callback, "training_bar", None) is not None:
                callback.training_bar.close()  # an error has a line of its own
    model.eval()
    if plan.keeps_zeros:
        reach_targets(model, plan, sample)


class Healer(Trainer):
    """Trains a converted model towards its softmax self.

    Args:
        teacher: the model before conversion.
        **kwargs: as Trainer.
    """

    def __init__(self, *, teacher: PreTrainedModel, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.teacher = teacher.to(self.args.device)
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """The mean distance of the states of a batch from the teacher's."""
        # no dropout: the teacher's states have none, and few steps should not fit noise
        model.eval()
        with torch.no_grad():
            theirs = states_of(self.teacher, inputs)
        loss = distances(states_of(model, inputs), theirs, inputs["attention_mask"]).mean()
        if not loss.isfinite():
            raise FloatingPointError(DIVERGED.format("the loss is"))
        return loss


class Bar(ProgressCallback):
    """A progress bar with the loss at its end, where Trainer's prints a dict every time."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.training_bar is not None and "loss" in logs:
            self.training_bar.set_postfix(loss=f"{logs['loss']:.4f}")


class KeepZeros(TrainerCallback, ExportableState):
    """Ramps the dials of the layers, and holds their zeros while the weights change.

    Args:
        plan: what each layer is to reach.
        batches: the texts on which zeros are counted.
        ramp: shares of it after a fraction of the training, by layer.
    """

    def __init__(self, plan: Plan, batches: Sequence[dict[str, Tensor]], ramp: Ramp) -> None:
        self.plan, self.batches, self.ramp = plan, batches, ramp

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # what Trainer has kept of a killed run
        for offset, layer in zip(_offsets(state), self.plan.layers, strict=False):
            layer.offset = offset
        set_dials(kwargs["model"], self.plan, self._shares(state))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model, shares = kwargs["model"], self._shares(state)
        set_dials(model, self.plan, shares)
        if state.global_step % EVERY == 0 and self.plan.keeps_zeros:
            correct(model, self.plan, self.batches, shares)

    def state(self) -> dict[str, Any]:
        """What Trainer stores with a checkpoint."""
        return {"args": {}, "attributes": {"offsets": [own.offset for own in self.plan.layers]}}

    def _shares(self, state: TrainerState) -> list[float]:
        done = min(1.0, state.global_step / max(1, state.max_steps))
        return self.ramp(done, len(self.plan.layers))


def _offsets(state: TrainerState) -> list[float]:
    if state.global_step == 0:
        return []
    kept = state.stateful_callbacks.get(KeepZeros.__name__, {})
    return kept["attributes"]["offsets"]

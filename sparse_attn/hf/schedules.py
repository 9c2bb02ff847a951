"""Schedules: move a parameter of the mappings, such as r, during training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

from sparse_attn.heads import MultiLabelHead
from sparse_attn.hf.layers import root_of
from sparse_attn.hf.patching import set_parameter
from sparse_attn.mappings.base import as_number

SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda x: x,
    "cosine": lambda x: (1 - math.cos(math.pi * x)) / 2,
    "cubic": lambda x: 1 - (1 - x) ** 3,
}


@dataclass(frozen=True)
class SparsitySchedule:
    """v(x) = initial + (final - initial) shape((x - begin) / (end - begin)), x = fraction done.

    The value is `initial` before `begin` and `final` after `end`. Shapes of u in [0, 1]: linear
    u; cosine (1 - cos(pi u)) / 2; cubic 1 - (1 - u)^3, fast first (Zhu & Gupta 2017). Balazy et
    al. 2023 ramp r linearly from 0.

    Args:
        parameter: name of a parameter of the model's mappings.
        initial, final: values of the parameter, in its range.
        shape: "linear", "cosine" or "cubic".
        begin, end: fractions of training, 0 <= begin <= end <= 1.

    Raises:
        ValueError: an unknown shape, or begin and end out of order or range.
        TypeError: an argument of another type.
    """

    parameter: str = "r"
    initial: float = 0.0
    final: float = 0.15
    shape: str = "linear"
    begin: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.parameter, str):
            raise TypeError(f"parameter={self.parameter!r}: expected a name, such as 'r'")
        for name in ("initial", "final", "begin", "end"):
            # Trainer writes them as JSON, which NumPy's numbers are not
            object.__setattr__(self, name, as_number(name, getattr(self, name)))
        if not isinstance(self.shape, str) or self.shape not in SHAPES:
            raise ValueError(
                f"shape={self.shape!r}: expected one of {', '.join(SHAPES)}; leave the "
                "schedule out for a constant value"
            )
        if not 0 <= self.begin <= self.end <= 1:
            raise ValueError(
                f"begin={self.begin}, end={self.end}: expected 0 <= begin <= end <= 1, fractions "
                "of training"
            )
        for name in ("initial", "final"):
            if not math.isfinite(value := getattr(self, name)):
                raise ValueError(
                    f"{name}={value}: expected a finite number in the range of {self.parameter}; "
                    "for t a value far above the range of the scores, such as 100, is softmax"
                )

    def value(self, progress: float) -> float:
        """Return the parameter's value after the fraction `progress` in [0, 1] of training.

        Raises:
            ValueError: progress outside [0, 1], such as a number of steps.
        """
        if not 0 <= progress <= 1:
            raise ValueError(
                f"progress={progress}: expected the fraction of training done, in [0, 1]; divide "
                "by the total number of steps"
            )
        if progress >= self.end:
            return self.final
        if progress <= self.begin:
            return self.initial
        share = (progress - self.begin) / (self.end - self.begin)
        return self.initial + (self.final - self.initial) * SHAPES[self.shape](share)

    def apply(self, model: nn.Module, progress: float) -> float:
        """Set the parameter in the attention of a patched model, or in a `MultiLabelHead`.

        Args:
            model: the model, plain or wrapped, or the head.
            progress: fraction of training done, in [0, 1].

        Returns:
            The value that was set.

        Raises:
            ValueError: no mapping of the model has this parameter, or progress or either end of the
                schedule is out of range.
            RuntimeError: a layer was added after `patch_model`.
            TypeError: a model that is not from Transformers.
        """
        value = self.value(progress)
        # so that an end out of range fails at the start, not half way
        ends = self.value(0.0), self.value(1.0)
        if isinstance(model, MultiLabelHead):
            model.set_parameter(self.parameter, value, ends)
        else:
            set_parameter(model, self.parameter, value, ends)
        return value


class SparsityScheduleCallback(TrainerCallback, ExportableState):
    """Applies a `SparsitySchedule` in `Trainer` after every step, by the fraction of steps done.

    The value depends on the step alone, so a resumed run continues exactly. It is logged as
    `sparsity/<parameter>`. Trainer calls its reporters before the given callbacks: to log the
    value in TensorBoard too, put this first,
    `trainer.callback_handler.callbacks.insert(0, SparsityScheduleCallback(schedule))`.

    Args:
        schedule: the schedule to apply.
        module: name of the `MultiLabelHead` in the model, such as "classifier", to apply it there
            instead of in the attention, logged as `sparsity/<module>.<parameter>`.

    Raises:
        TypeError: another object as schedule.
    """

    def __init__(self, schedule: SparsitySchedule, module: str | None = None) -> None:
        if not isinstance(schedule, SparsitySchedule):
            raise TypeError(
                f"schedule={schedule!r}: expected a SparsitySchedule, such as "
                "SparsitySchedule('r', initial=0, final=0.15)"
            )
        self.schedule = schedule
        self.module = module

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        self._apply(_share_done(state), kwargs["model"])

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        # after the step, so that evaluation and checkpoints see the new value
        self._apply(_share_done(state), kwargs["model"])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is not None and state.max_steps > 0:
            value = self.schedule.value(_share_done(state))
            where = "" if self.module is None else f"{self.module}."
            # the history holds a copy of `logs` made before the callbacks
            for entry in (logs, state.log_history[-1]):
                entry[f"sparsity/{where}{self.schedule.parameter}"] = value

    def state(self) -> dict[str, Any]:
        """Return the schedule and module, which Trainer stores with a checkpoint."""
        return {"args": asdict(self.schedule), "attributes": {"module": self.module}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SparsityScheduleCallback:
        """Make the callback from its `state`. Errors as `SparsitySchedule`."""
        return cls(SparsitySchedule(**state["args"]), state["attributes"].get("module"))

    def _apply(self, progress: float, model: nn.Module) -> None:
        targets = [model] if self.module is None else self._heads(self.module, root_of(model))
        for target in targets:
            self.schedule.apply(target, progress)

    @staticmethod
    def _heads(name: str, root: nn.Module) -> list[MultiLabelHead]:
        """Return the heads of this name: with PEFT's modules_to_save also the trainable copy."""
        try:
            held = root.get_submodule(name)
        except AttributeError:
            held = nn.Module()
        heads = [module for module in held.modules() if isinstance(module, MultiLabelHead)]
        if not heads:
            raise ValueError(
                f"module={name!r}: expected the name of a MultiLabelHead in "
                f"{type(root).__name__}, such as 'classifier'"
            )
        return heads


def _share_done(state: TrainerState) -> float:
    # a run may resume from a checkpoint beyond its end
    return min(1.0, state.global_step / max(1, state.max_steps))

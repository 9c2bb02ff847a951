"""The progress of a run on the terminal."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import has_length

from sparse_attn.evaluation.tasks import CLASSIFICATION_METRICS, REGRESSION_METRICS


class ProgressLines(ProgressCallback):
    """Progress bars, shown only on a terminal, and one readable line for each log of Trainer."""

    training_bar: Any
    prediction_bar: Any

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.current_step = state.global_step
        if state.is_world_process_zero:
            self.training_bar = _bar("Training", state.max_steps, state.global_step)
            if state.global_step:
                tqdm.write(f"resuming at step {state.global_step} of {state.max_steps}")

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and has_length(eval_dataloader):
            if self.prediction_bar is None:
                self.prediction_bar = _bar("Evaluating", len(eval_dataloader))
            self.prediction_bar.update()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero:
            for line in lines(logs or {}, state.global_step, state.max_steps):
                tqdm.write(line)

    def close(self) -> None:
        """Remove the bars, even after an error."""
        for bar in (self.training_bar, self.prediction_bar):
            if bar is not None:
                bar.close()


def _bar(label: str, total: int, initial: int = 0) -> tqdm:
    return tqdm(
        initial=initial, total=total, desc=label, leave=False, dynamic_ncols=True, disable=None
    )


def lines(logs: dict[str, Any], step: int, steps: int) -> list[str]:
    """Format a log of Trainer: one line for training, one per split for an evaluation."""
    if "loss" in logs:
        parts = [f"loss {logs['loss']:.4f}", f"learning rate {logs['learning_rate']:.2g}"]
        ramped = {key: value for key, value in logs.items() if key.startswith("sparsity/")}
        parts += [f"{key.removeprefix('sparsity/')} {value:.3g}" for key, value in ramped.items()]
        return [f"step {step} of {steps}, epoch {logs['epoch']:.2f}: {', '.join(parts)}"]
    splits: dict[str, list[str]] = {}
    for name in (*CLASSIFICATION_METRICS, *REGRESSION_METRICS, "loss", "sparsity"):
        for key, value in logs.items():
            if key.startswith("eval_") and key.endswith(f"_{name}"):
                split = key.removeprefix("eval_").removesuffix(f"_{name}")
                found = f"exact zeros {value:.1%}" if name == "sparsity" else f"{name} {value:.4f}"
                splits.setdefault(split, []).append(found)
    return [f"epoch {logs['epoch']:g}, {split}: {', '.join(p)}" for split, p in splits.items()]

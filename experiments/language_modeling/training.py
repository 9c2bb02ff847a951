"""The training loop: stages of epochs of steps, resumable at any step."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from experiments.language_modeling.config import LanguageRunConfig
from experiments.language_modeling.corpus import Corpus, batchify
from experiments.language_modeling.factored import REFRESH, clipped_step, factored_layer, write_back
from experiments.language_modeling.measures import mean_nll
from experiments.language_modeling.models import LanguageModel
from experiments.language_modeling.optimizer import (
    averaged,
    draw_length,
    make_optimizer,
    schedule,
    set_learning_rate,
    triggered,
)
from experiments.language_modeling.sections import StageConfig
from sparse_attn.engine.fitting import load_checkpoint, restore_random, save_checkpoint
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.heads.base import positive


@dataclass
class TrainingProgress:
    """Progress of a run.

    Attributes:
        stage, epoch, step: counted from 0; epoch and step within the stage.
        position: tokens of each row trained on in this epoch.
        loss, tokens: sum of the losses of this epoch, and its number of tokens.
        over: whether the stage is finished.
        averaging: whether the optimizer averages the weights.
        history: validation losses of the stage.
        epochs: the record of each epoch, over all stages.
        best: lowest validation loss.
        seconds: time spent.
    """

    stage: int = 0
    epoch: int = 0
    step: int = 0
    position: int = 0
    loss: float = 0.0
    tokens: int = 0
    over: bool = False
    averaging: bool = False
    history: list[float] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    best: float = math.inf
    seconds: float = 0.0


class Training:
    """Trains `model` in place.

    Unlike `engine.fitting.fit`, it also writes checkpoints within an epoch, which may take hours,
    with the model states at that position of the text.

    Args:
        config: the run.
        corpus: what to train and validate on.
        model: on its device.
        checkpoint: file written atomically every `checkpoint_steps` and after every epoch; if it
            exists, training resumes from it. None for none.
    """

    def __init__(
        self,
        config: LanguageRunConfig,
        corpus: Corpus,
        model: LanguageModel,
        checkpoint: Path | None,
    ) -> None:
        self.config, self.corpus, self.model, self.checkpoint = config, corpus, model, checkpoint
        self.device = model.embedding.weight.device
        self.stages = [stage for stage in (config.train, config.finetune) if stage is not None]
        self.progress = TrainingProgress()
        self.best: dict[str, Tensor] | None = None
        self.clock = time.perf_counter()
        if checkpoint is not None and checkpoint.exists():
            self._load(checkpoint)
        else:
            self._begin_stage(self.stage.average_from == 0)

    @property
    def stage(self) -> StageConfig:
        """Return the current stage."""
        return self.stages[self.progress.stage]

    @property
    def _stage_name(self) -> str:
        return ("train", "finetune")[self.progress.stage]

    def run(self) -> None:
        """Train to the end of the last stage and load the best weights into the model.

        Raises:
            DivergedError: a loss is not finite. The model has the best weights so far, if any.
        """
        try:
            while not (self.progress.over and self.stage is self.stages[-1]):
                if self.progress.over:
                    self._next_stage()
                self._epoch()
        finally:
            self._restore_best()

    def _next_stage(self) -> None:
        self._restore_best()
        done = self.progress
        self.progress = TrainingProgress(
            stage=done.stage + 1, epochs=done.epochs, best=done.best, seconds=done.seconds
        )
        self._begin_stage(self.stage.average_from == 0)

    def _restore_best(self) -> None:
        if self.best is not None:
            self.model.load_state_dict(self.best)

    def _begin_stage(self, averaging: bool) -> None:
        self._make_optimizer(averaging)
        self.layer = None
        if self.config.head.kind == "factored":
            self.layer = factored_layer(self.model)
        self.rows = batchify(self.corpus.train, self.stage.batch).to(self.device)
        self.state = self.model.initial_state(self.stage.batch)

    def _make_optimizer(self, averaging: bool) -> None:
        self.progress.averaging = averaging
        self.optimizer = make_optimizer(
            self.model, self.stage, self.config.head.mapping_lr, averaging
        )

    def _epoch(self) -> None:
        """Train from `position` to the end of the rows or of the budget, then evaluate."""
        progress, last = self.progress, self.rows.shape[1] - 1
        name = f"epoch {progress.epoch + 1}/{self.stage.epochs}"
        self.model.train()
        with tqdm(total=last, initial=progress.position, desc=name, disable=None) as bar:
            while progress.position < last and not self._out_of_steps():
                bar.update(self._step())
                bar.set_postfix(loss=f"{progress.loss / progress.tokens:.3f}", refresh=False)
                if progress.step % self.config.checkpoint_steps == 0:
                    self._save()
        self._end_epoch()

    def _step(self) -> int:
        """Do one optimizer step; return the number of tokens per row."""
        progress, stage, start = self.progress, self.stage, self.progress.position
        drawn = draw_length(stage)
        end = min(start + drawn, self.rows.shape[1] - 1)
        tokens, targets = self.rows[:, start:end], self.rows[:, start + 1 : end + 1]
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"
        ):
            hidden, penalty, self.state = self.model.regularized(tokens, self.state)
            if self.layer is None:
                loss = self.model.head.loss(hidden, targets, chunk=self.config.chunk)
            else:
                loss = self.layer(hidden, targets)
        value = loss.item()
        if not math.isfinite(value):
            raise self._diverged(f"the loss of step {progress.step + 1} is {value}")
        self.optimizer.zero_grad()
        (loss + penalty).backward()
        factor = schedule(stage, progress.step, self._share_done())
        self._update(factor * (drawn / stage.bptt if stage.vary else 1.0))
        progress.step += 1
        progress.position = end
        progress.loss += value * targets.numel()
        progress.tokens += targets.numel()
        return end - start

    def _update(self, factor: float) -> None:
        """Clip all gradients together and step, at `factor` times the learning rates."""
        stage, step = self.stage, self.progress.step + 1
        if self.layer is not None:
            try:
                clipped_step(self.layer, self.model, stage, factor * stage.learning_rate)
            except ValueError as error:
                raise self._diverged(f"step {step} of the factored head: {error}") from None
            if step % REFRESH == 0:
                self.layer.matrix.refresh()
        elif stage.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), stage.clip)
        set_learning_rate(self.optimizer, factor)
        self.optimizer.step()

    def _end_epoch(self) -> None:
        """Evaluate, record, keep the best weights, and decide how to continue."""
        progress, stage, evaluation = self.progress, self.stage, self.config.evaluation
        if self.layer is not None:
            write_back(self.layer, self.model)
        with averaged(self.optimizer):
            nll = mean_nll(
                self.model,
                self.corpus.valid,
                evaluation.batch,
                evaluation.segment,
                self.config.chunk,
            )
            # also if all are inf, as with exact zeros
            if nll <= progress.best:
                progress.best, self.best = nll, copy.deepcopy(self.model.state_dict())
        self._record(nll)
        fired = triggered(progress.history, nll, stage.patience)
        progress.history.append(nll)
        progress.epoch += 1
        progress.position, progress.loss, progress.tokens = 0, 0.0, 0
        self.state = self.model.initial_state(stage.batch)
        switch = fired if stage.average_from == "trigger" else progress.epoch == stage.average_from
        if switch and not progress.averaging:
            self._make_optimizer(averaging=True)
        elif fired and stage.stop_on_trigger:
            progress.over = progress.averaging or stage.average_from == "never"
        if progress.epoch >= stage.epochs or self._out_of_steps():
            progress.over = True
        # before the checkpoint, so that a run killed here diverges again
        if math.isnan(nll) or (math.isinf(nll) and positive(self.model.head.mapping)):
            raise self._diverged(f"the validation loss of epoch {progress.epoch} is {nll}")
        self._save()

    def _diverged(self, fault: str) -> DivergedError:
        stage = self._stage_name
        return DivergedError(f"{fault}: training has diverged; lower {stage}.learning_rate")

    def _record(self, nll: float) -> None:
        progress = self.progress
        self._tick()
        entry = {
            "epoch": len(progress.epochs) + 1,
            "stage": self._stage_name,
            "steps": progress.step,
            "train_nll": progress.loss / progress.tokens,
            "valid_nll": nll,
            "seconds": progress.seconds - sum(epoch["seconds"] for epoch in progress.epochs),
            "lr": self.stage.learning_rate,
            "averaging": progress.averaging,
        }
        progress.epochs.append(entry)
        tqdm.write(
            f"epoch {entry['epoch']} ({entry['stage']}): train {entry['train_nll']:.4f}, "
            f"valid {nll:.4f}, {entry['seconds']:.0f} s"
        )

    def _share_done(self) -> float:
        """Share of the stage's budget used, in [0, 1)."""
        progress, stage = self.progress, self.stage
        epochs = (progress.epoch + progress.position / self.rows.shape[1]) / stage.epochs
        return max(epochs, progress.step / stage.max_steps if stage.max_steps else 0.0)

    def _out_of_steps(self) -> bool:
        return self.stage.max_steps is not None and self.progress.step >= self.stage.max_steps

    def _tick(self) -> None:
        """Add the time since the last tick."""
        now = time.perf_counter()
        self.progress.seconds += now - self.clock
        self.clock = now

    def _save(self) -> None:
        self._tick()
        if self.checkpoint is None:
            return
        content = {
            "progress": asdict(self.progress),
            "model": self.model.state_dict(),
            "best": self.best,
            "layer": None if self.layer is None else self.layer.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "state": self.state,
        }
        save_checkpoint(self.checkpoint, content)

    def _load(self, checkpoint: Path) -> None:
        content = load_checkpoint(checkpoint)
        self.progress = TrainingProgress(**content["progress"])
        self._begin_stage(self.progress.averaging)
        self.model.load_state_dict(content["model"])
        self.best = content["best"]
        if self.layer is not None:
            self.layer.load_state_dict(content["layer"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.state = tuple(part.to(self.device) for part in content["state"])
        restore_random(content)  # last, because a new layer draws numbers

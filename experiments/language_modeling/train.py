"""One run: from a config to results.json and the best weights, model.pt."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.language_modeling.config import (
    LanguageRunConfig,
    LanguageSweepConfig,
    SetupConfig,
)
from experiments.language_modeling.corpus import Corpus, batchify, load_corpus
from experiments.language_modeling.measures import mean_nll, perplexity
from experiments.language_modeling.measuring import check_measures, measures
from experiments.language_modeling.models import LanguageModel, build_model
from experiments.language_modeling.training import Training
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.heads.base import positive
from sparse_attn.system.files import write_tensors
from sparse_attn.system.machine import choose_device, device_name, peak_memory_mib, versions
from sparse_attn.system.run_folders import CHECKPOINT_FILE

MODEL_FILE = "model.pt"


@dataclass
class LanguageRun:
    """A run, ready to perform."""

    config: LanguageRunConfig
    corpus: Corpus
    model: LanguageModel

    def perform(self, folder: Path) -> dict[str, Any]:
        """Train, measure the best weights and return the content of results.json.

        Args:
            folder: folder of model.pt and of checkpoint.pt, from which an interrupted run resumes.

        Raises:
            DivergedError: a loss is not finite; carries the results so far, including the epochs of
                a resumed run.
        """
        config, corpus, model = self.config, self.corpus, self.model
        checkpoint = folder / CHECKPOINT_FILE
        training = Training(config, corpus, model, checkpoint)
        try:
            training.run()
        except DivergedError as error:
            checkpoint.unlink(missing_ok=True)  # it would only diverge again
            raise DivergedError(str(error), self._results(training, folder)) from None
        results = self._results(training, folder) | {"status": "finished"}
        return results | measures(model, corpus, config.evaluation, config.measures)

    def _results(self, training: Training, folder: Path) -> dict[str, Any]:
        """Return the facts of a run and the perplexities of the best weights, if any."""
        config, corpus, model, progress = self.config, self.corpus, self.model, training.progress
        results: dict[str, Any] = {
            "head": config.head.name,
            "corpus": config.corpus.name,
            "tokens": corpus.tokens(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "epochs": progress.epochs,
            "valid_perplexity": None,
            "test_perplexity": None,
            "seconds": progress.seconds,
            "seed": config.seed,
            "device": device_name(training.device),
            "versions": versions("torch"),
            "peak_memory_mib": peak_memory_mib(training.device),
        }
        if training.best is not None:
            write_tensors(folder / MODEL_FILE, model.state_dict())
            evaluation = config.evaluation
            splits = {"valid": evaluation.batch, "test": evaluation.test_batch}
            for split, batch in splits.items():
                stream, bar = getattr(corpus, split), split if sys.stderr.isatty() else None
                nll = mean_nll(model, stream, batch, evaluation.segment, config.chunk, bar)
                results[f"{split}_perplexity"] = perplexity(nll)
            # inf if the head gives a word exactly 0
            results["score"] = -math.log(results["valid_perplexity"])
        return results


def assemble(config: LanguageRunConfig) -> LanguageRun:
    """Read the corpus and build the initial model on its device.

    Raises:
        ValueError, TypeError, OSError: invalid config, corpus or head.
    """
    device = choose_device(config.device)
    corpus = _read_corpus(config)
    torch.manual_seed(config.seed)
    return LanguageRun(config, corpus, build_model(config.model, config.head, corpus).to(device))


def check_heads(sweep: LanguageSweepConfig) -> None:
    """Raise the errors of `assemble`, or ValueError if a learning rate could not be chosen."""
    choose_device(sweep.device)
    corpus = _read_corpus(sweep)
    for label, head in sweep.heads.items():
        try:
            mapping = build_model(sweep.model, head, corpus).head.mapping
        except (ValueError, TypeError) as error:
            raise ValueError(f"heads.{label}: {error}") from None
        if len(sweep.learning_rates) > 1 and not positive(mapping):
            raise ValueError(
                f"learning_rates={sweep.learning_rates}: expected one for heads.{label}, which "
                "gives words exactly 0: the perplexity that would choose the rate is infinite"
            )


def _read_corpus(config: SetupConfig) -> Corpus:
    """Return the corpus, checked to be long enough for training and measures."""
    corpus = load_corpus(config.corpus)
    for stage in filter(None, (config.train, config.finetune)):
        batchify(corpus.train, stage.batch)
    batchify(corpus.valid, config.evaluation.batch)
    batchify(corpus.test, config.evaluation.test_batch)
    check_measures(corpus, config.measures)
    return corpus

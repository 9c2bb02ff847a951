"""One run: from a config to results.json and the best weights, model.pt."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engine.command import from_dict
from experiments.language_modeling.config import (
    LanguageRunConfig,
    LanguageSweepConfig,
    MeasureConfig,
    SetupConfig,
)
from experiments.language_modeling.corpus import Corpus, batchify, load_corpus
from experiments.language_modeling.measures import mean_nll, perplexity
from experiments.language_modeling.measuring import check_measures, measures
from experiments.language_modeling.models import LanguageModel, build_model
from experiments.language_modeling.training import Training
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.heads.base import positive
from sparse_attn.system.files import read_json, write_json, write_tensors
from sparse_attn.system.machine import choose_device, device_name, peak_memory_mib, versions
from sparse_attn.system.run_folders import CHECKPOINT_FILE, RESULTS_FILE

MODEL_FILE = "model.pt"


@dataclass
class LanguageRun:
    """A run, ready to perform."""

    config: LanguageRunConfig
    corpus: Corpus
    model: LanguageModel

    def perform(self, folder: Path | None) -> dict[str, Any]:
        """Train, measure the best weights and return the content of results.json.

        Args:
            folder: folder of model.pt and of checkpoint.pt, from which an interrupted run resumes.

        Raises:
            DivergedError: a loss is not finite; carries the results so far, including the epochs of
                a resumed run.
        """
        config, corpus, model = self.config, self.corpus, self.model
        if folder is None:
            training = Training(config, corpus, model, None)
            training.run()
        else:

            def write_running() -> None:
                facts = self._facts(training)
                content = {**facts, "status": "running", "config": asdict(config)}
                write_json(folder / RESULTS_FILE, content)

            checkpoint = folder / CHECKPOINT_FILE
            training = Training(config, corpus, model, checkpoint, write_running)
            try:
                training.run()
            except DivergedError as error:
                checkpoint.unlink(missing_ok=True)  # it would only diverge again
                raise DivergedError(str(error), self._results(training, folder)) from None
        results = self._results(training, folder) | {"status": "finished"}
        return results | measures(model, corpus, config.evaluation, config.measures)

    def _facts(self, training: Training) -> dict[str, Any]:
        """Return the results that are known at any time."""
        config, corpus, model, progress = self.config, self.corpus, self.model, training.progress
        return {
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

    def _results(self, training: Training, folder: Path | None) -> dict[str, Any]:
        """Return `_facts` and the perplexities of the best weights, if any."""
        config, corpus, model = self.config, self.corpus, self.model
        results = self._facts(training)
        if training.best is not None:
            if folder is not None:
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


def measure(config: MeasureConfig) -> dict[str, Any]:
    """Measure the best weights of a run; update its results.json and return the new values.

    Other values in results.json are kept.

    Raises:
        ValueError, OSError: invalid folder, corpus or SimLex file.
    """
    folder = Path(config.run_dir)
    results = _read(folder)
    run = replace(from_dict(LanguageRunConfig, results["config"]), measures=config)
    if config.data_dir is not None:
        run = replace(run, corpus=replace(run.corpus, data_dir=config.data_dir))
    parts = assemble(run)
    weights = torch.load(folder / MODEL_FILE, "cpu", weights_only=True)
    words = weights["embedding.weight"].shape[0]
    if words != len(parts.corpus.vocabulary):
        raise ValueError(
            f"data_dir: its corpus has {len(parts.corpus.vocabulary):,} words, the run's had "
            f"{words:,}; expected the same files"
        )
    parts.model.load_state_dict(weights)
    found = measures(parts.model, parts.corpus, run.evaluation, config)
    write_json(folder / RESULTS_FILE, results | found)
    return found


def _read(folder: Path) -> dict[str, Any]:
    """Return results.json of a finished run that kept its weights."""
    remedy = "expected the folder of a finished run; resume an interrupted one by train --resume"
    results: dict[str, Any] = read_json(folder / RESULTS_FILE, f"run_dir={folder}", remedy)
    config = results.get("config") if isinstance(results, dict) else None
    if not isinstance(config, dict) or "head" not in config:
        raise ValueError(f"run_dir={folder}: not a language model's run; {remedy}")
    # a run writes its results at the end, and would overwrite these
    if results["status"] == "running":
        raise ValueError(f"run_dir={folder}: the run is running or interrupted; {remedy}")
    if not (folder / MODEL_FILE).exists():
        raise ValueError(
            f"run_dir={folder}: the run is {results['status']} and has no {MODEL_FILE}; expected "
            "one that kept its weights"
        )
    return results

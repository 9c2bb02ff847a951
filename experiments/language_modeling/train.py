"""One run: from a config to what results.json holds and the best weights, model.pt."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from experiments.language_modeling.config import (
    MeasureConfig,
    RunConfig,
    SetupConfig,
    SweepConfig,
)
from experiments.language_modeling.corpus import Corpus, batchify, load_corpus
from experiments.language_modeling.measures import mean_nll, perplexity
from experiments.language_modeling.measuring import check_measures, measures
from experiments.language_modeling.models import LanguageModel, build_model
from experiments.language_modeling.training import Training
from pipeline.command import from_dict
from pipeline.files import read_json, write_json, write_tensors
from pipeline.fitting import DivergedError
from pipeline.folders import CHECKPOINT_FILE, RESULTS_FILE
from pipeline.machine import choose_device, device_name, peak_memory_mib, versions
from sparse_attn.heads.base import positive

MODEL_FILE = "model.pt"


@dataclass
class Run:
    """A run whose parts have been made and found to fit together."""

    config: RunConfig
    corpus: Corpus
    model: LanguageModel

    def perform(self, folder: Path | None) -> dict[str, Any]:
        """Train, measure the best weights and return what results.json is to hold.

        Args:
            folder: of model.pt, and of checkpoint.pt, from which a run goes on that was cut off.

        Raises:
            DivergedError: a loss is not finite; it carries what came before. results.json of a run
                that goes on has its epochs.
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
                raise DivergedError(str(error), self._results(training, folder)) from None
        results = self._results(training, folder) | {"status": "finished"}
        return results | measures(model, corpus, config.evaluation, config.measures)

    def _facts(self, training: Training) -> dict[str, Any]:
        """What every run tells at any time."""
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
        """The same, with the perplexities of the best weights, if there are any."""
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
            # inf where the head gives a word exactly 0
            results["score"] = -math.log(results["valid_perplexity"])
        return results


def assemble(config: RunConfig) -> Run:
    """Read the corpus and build the model, with its first weights, on its device.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the config, the corpus or the head.
    """
    device = choose_device(config.device)
    corpus = _read_corpus(config)
    torch.manual_seed(config.seed)
    return Run(config, corpus, build_model(config.model, config.head, corpus).to(device))


def check_heads(sweep: SweepConfig) -> None:
    """Raise what `assemble` would for a run of the sweep, or where no rate could be chosen."""
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
                "gives words exactly 0: the perplexity that is to choose the rate is infinite"
            )


def _read_corpus(config: SetupConfig) -> Corpus:
    """The corpus, found long enough for what is to be done with it."""
    corpus = load_corpus(config.corpus)
    for stage in filter(None, (config.train, config.finetune)):
        batchify(corpus.train, stage.batch)
    batchify(corpus.valid, config.evaluation.batch)
    batchify(corpus.test, config.evaluation.test_batch)
    check_measures(corpus, config.measures)
    return corpus


def measure(config: MeasureConfig) -> dict[str, Any]:
    """Measure the best weights of a run, into its results.json; returns what is new there.

    What is not asked for stays as it is there.

    Raises:
        ValueError, OSError: what is wrong with the folder, the corpus or SimLex's file.
    """
    folder = Path(config.run_dir)
    results = _read(folder)
    run = replace(from_dict(RunConfig, results["config"]), measures=config)
    if config.data_dir is not None:
        run = replace(run, corpus=replace(run.corpus, data_dir=config.data_dir))
    parts = assemble(run)
    weights = torch.load(folder / MODEL_FILE, "cpu", weights_only=True)
    words = weights["embedding.weight"].shape[0]
    if words != len(parts.corpus.vocabulary):
        raise ValueError(
            f"data_dir: its corpus has {len(parts.corpus.vocabulary):,} words, that of the run had "
            f"{words:,}; expected the same files"
        )
    parts.model.load_state_dict(weights)
    found = measures(parts.model, parts.corpus, run.evaluation, config)
    write_json(folder / RESULTS_FILE, results | found)
    return found


def _read(folder: Path) -> dict[str, Any]:
    """results.json of a run that has ended and kept its weights."""
    remedy = (
        "expected the folder of a run that has ended; go on with one that was cut off by train "
        "--resume"
    )
    results: dict[str, Any] = read_json(folder / RESULTS_FILE, f"run_dir={folder}", remedy)
    if not (folder / MODEL_FILE).exists():
        raise ValueError(
            f"run_dir={folder}: the run is {results['status']} and has no {MODEL_FILE}; expected "
            "one that has kept its weights"
        )
    return results

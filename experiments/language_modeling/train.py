"""One training run: from a config to results.json and the best weights, model.pt."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import experiments.language_modeling.mappings  # noqa: F401
from experiments.language_modeling.config import RunConfig
from experiments.language_modeling.corpus import Corpus, batchify, load_corpus
from experiments.language_modeling.measures import mean_nll, perplexity
from experiments.language_modeling.models import LanguageModel, build_model
from experiments.language_modeling.records import (
    CHECKPOINT_FILE,
    MODEL_FILE,
    check_output_dir,
    claim_output_dir,
)
from experiments.language_modeling.training import Training
from pipeline.files import write_json
from pipeline.fitting import DivergedError
from pipeline.folders import RESULTS_FILE
from pipeline.machine import choose_device, device_name, peak_memory_mib, versions


@dataclass
class Run:
    """A run whose parts have been made and found to fit together."""

    config: RunConfig
    corpus: Corpus
    model: LanguageModel


def prepare(config: RunConfig) -> Run:
    """Read the corpus, build the model, and only then claim output_dir.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the config, the corpus or the head.
            Nothing has been written then.
    """
    check_output_dir(config)
    corpus, model = assemble(config)
    for stage in filter(None, (config.train, config.finetune)):
        batchify(corpus.train, stage.batch)
    batchify(corpus.valid, config.evaluation.batch)
    batchify(corpus.test, config.evaluation.test_batch)
    claim_output_dir(config)
    return Run(config, corpus, model)


def assemble(config: RunConfig) -> tuple[Corpus, LanguageModel]:
    """The corpus, and the model with its first weights on its device; raises as `prepare`."""
    device = choose_device(config.device)
    corpus = load_corpus(config.corpus)
    torch.manual_seed(config.seed)
    return corpus, build_model(config.model, config.head, corpus).to(device)


def train(run: Run) -> dict[str, Any]:
    """Train, evaluate the best weights, write results.json and return what it holds.

    Raises:
        DivergedError: a loss is not finite; results.json says so, with what came before.
    """
    config, model = run.config, run.model
    folder = Path(config.output_dir)
    results = {
        "config": config.to_dict(),
        "head": config.head.name,
        "corpus": config.corpus.name,
        "tokens": run.corpus.tokens(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "epochs": [],
        "valid_perplexity": None,
        "test_perplexity": None,
        "top_10_error": None,
        "rank": None,
        "slopes": None,
        "simlex": None,
        "dynamic": None,
        "seconds": 0.0,
        "seed": config.seed,
        "device": device_name(model.embedding.weight.device),
        "versions": versions("torch"),
        "status": "running",
    }

    def write() -> None:
        results["epochs"] = training.progress.epochs
        results["seconds"] = training.progress.seconds
        results["peak_memory_mib"] = peak_memory_mib(training.device)
        write_json(folder / RESULTS_FILE, results)

    def finish(status: str) -> None:
        if (folder / MODEL_FILE).exists():
            training.load_best()
            results.update(perplexities(run))
        results["status"] = status
        write()
        (folder / CHECKPOINT_FILE).unlink(missing_ok=True)

    training = Training(config, run.corpus, model, write)
    try:
        training.run()
    except DivergedError:
        finish("diverged")
        raise
    finish("finished")
    return results


def perplexities(run: Run) -> dict[str, float]:
    """Of the validation and the test split, with the model as it is."""
    evaluation, chunk = run.config.evaluation, run.config.chunk
    splits = {
        "valid": (run.corpus.valid, evaluation.batch),
        "test": (run.corpus.test, evaluation.test_batch),
    }
    return {
        f"{split}_perplexity": perplexity(
            mean_nll(run.model, stream, batch, evaluation.segment, chunk, _bar(split))
        )
        for split, (stream, batch) in splits.items()
    }


def _bar(name: str) -> str | None:
    """The name of a progress bar, where someone sees it."""
    return name if sys.stderr.isatty() else None

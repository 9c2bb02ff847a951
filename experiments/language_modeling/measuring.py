"""What is measured of a run that has ended, beside its perplexity."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from experiments.language_modeling.config import MeasureConfig, RunConfig
from experiments.language_modeling.corpus import Corpus
from experiments.language_modeling.dynamic import (
    DynamicConfig,
    choose,
    dynamic_evaluation,
    gradient_statistics,
)
from experiments.language_modeling.measures import log_prob_matrix, perplexity, top_k_error
from experiments.language_modeling.models import LanguageModel
from experiments.language_modeling.rank import exact_rank, numerical_rank
from experiments.language_modeling.records import MODEL_FILE, read_results
from experiments.language_modeling.simlex import simlex
from experiments.language_modeling.train import assemble
from pipeline.files import write_json
from pipeline.folders import RESULTS_FILE
from sparse_attn.inspection import slope_statistics

EXACT_CONTEXTS = 2000


def measure(config: MeasureConfig) -> dict[str, Any]:
    """Measure the best weights of a run, into its results.json; returns what that holds then.

    What is not asked for stays as it is there.

    Raises:
        ValueError, OSError: what is wrong with the folder, the corpus or SimLex's file.
    """
    folder = Path(config.run_dir)
    results = read_results(folder)
    if results["status"] == "running" or not (folder / MODEL_FILE).exists():
        raise ValueError(
            f"run_dir={folder}: the run is {results['status']} and "
            f"{'has' if (folder / MODEL_FILE).exists() else 'has no'} {MODEL_FILE}; expected one "
            "that has ended and kept its weights; go on with it by train --resume"
        )
    run_config = RunConfig.from_dict(results["config"])
    if config.data_dir is not None:
        corpus_config = replace(run_config.corpus, data_dir=config.data_dir)
        run_config = replace(run_config, corpus=corpus_config)
    corpus, model = assemble(run_config)
    weights = torch.load(folder / MODEL_FILE, "cpu", weights_only=True)
    words = weights["embedding.weight"].shape[0]
    if words != len(corpus.vocabulary):
        raise ValueError(
            f"data_dir: its corpus has {len(corpus.vocabulary):,} words, that of the run had "
            f"{words:,}; expected the same files"
        )
    model.load_state_dict(weights)
    evaluation, head = run_config.evaluation, model.head
    results["top_10_error"] = top_k_error(
        model, corpus.test, evaluation.test_batch, evaluation.segment
    )
    if head.mapping.name == "plif":
        results["slopes"] = slope_statistics(head.mapping)
    if config.simlex is not None:
        found = simlex(model.embedding.weight, corpus.vocabulary, config.simlex)
        results["simlex"] = asdict(found)
    if config.rank_contexts is not None:
        results["rank"] = _rank(model, corpus, config.rank_contexts, evaluation.segment)
    if config.dynamic is not None:
        results["dynamic"] = _dynamic(model, corpus, config)
    write_json(folder / RESULTS_FILE, results)
    return results


def _rank(model: LanguageModel, corpus: Corpus, contexts: int, segment: int) -> dict[str, Any]:
    device = model.embedding.weight.device
    matrix = log_prob_matrix(model, corpus.test, contexts, segment)
    found = numerical_rank(matrix.to(device))
    few = min(contexts, EXACT_CONTEXTS)
    exact = log_prob_matrix(copy.deepcopy(model).double(), corpus.test, few, segment)
    return {
        "rank": found.rank,
        "contexts": contexts,
        "vocab": len(corpus.vocabulary),
        "tolerance": found.tolerance,
        "d": model.head.hidden,
        "spectrum": found.spectrum(),
        "float64": {"rank": exact_rank(exact.to(device)).rank, "contexts": few},
    }


def _dynamic(model: LanguageModel, corpus: Corpus, config: MeasureConfig) -> dict[str, Any]:
    assert config.dynamic is not None
    settings = DynamicConfig(
        config.dynamic, config.dynamic_lamb, config.dynamic_lr, config.dynamic_epsilon
    )
    if config.dynamic_choose:
        settings, _ = choose(model, corpus.train, corpus.valid, settings)
    statistics = gradient_statistics(model, corpus.train, settings)
    perplexities = {}
    for split, stream in (("valid", corpus.valid), ("test", corpus.test)):
        nll = dynamic_evaluation(model, corpus.train, stream, settings, statistics)
        perplexities[f"{split}_perplexity"] = perplexity(nll)
    return {**perplexities, **asdict(settings), "chosen": config.dynamic_choose}

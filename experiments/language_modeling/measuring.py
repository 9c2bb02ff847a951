"""Measures of a trained model besides perplexity."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.language_modeling.config import MeasuresConfig
from experiments.language_modeling.corpus import Corpus, batchify
from experiments.language_modeling.dynamic import dynamic_evaluation, gradient_statistics
from experiments.language_modeling.measures import (
    check_contexts,
    log_prob_matrix,
    perplexity,
    top_k_error,
)
from experiments.language_modeling.models import LanguageModel
from experiments.language_modeling.rank import exact_rank, numerical_rank
from experiments.language_modeling.sections import DynamicConfig, EvaluationConfig
from experiments.language_modeling.simlex import read_pairs, simlex
from sparse_attn.inspection import learned_function, slope_statistics
from sparse_attn.inspection.slopes import LEARNED

EXACT_CONTEXTS = 2000


def check_measures(corpus: Corpus, wanted: MeasuresConfig) -> None:
    """Raise the errors of the measures early, before training takes hours."""
    if wanted.simlex is not None:
        read_pairs(Path(wanted.simlex))
    if wanted.rank_contexts is not None:
        check_contexts(corpus.test, wanted.rank_contexts)
    if wanted.dynamic is not None:
        batchify(corpus.train, wanted.dynamic.batch)


def measures(
    model: LanguageModel, corpus: Corpus, evaluation: EvaluationConfig, wanted: MeasuresConfig
) -> dict[str, Any]:
    """Return top-10 error, the function of a PLIF or monotone network, and requested measures."""
    found: dict[str, Any] = {
        "top_10_error": top_k_error(model, corpus.test, evaluation.test_batch, evaluation.segment)
    }
    if model.head.mapping.name == "plif":
        found["slopes"] = slope_statistics(model.head.mapping)
    if model.head.mapping.name in LEARNED:
        found["function"] = learned_function(model.head.mapping)
    if wanted.simlex is not None:
        found["simlex"] = asdict(simlex(model.embedding.weight, corpus.vocabulary, wanted.simlex))
    if wanted.rank_contexts is not None:
        found["rank"] = _rank(model, corpus, wanted.rank_contexts, evaluation.segment)
    if wanted.dynamic is not None:
        found["dynamic"] = _dynamic(model, corpus, wanted.dynamic)
    return found


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


def _dynamic(model: LanguageModel, corpus: Corpus, config: DynamicConfig) -> dict[str, Any]:
    statistics = gradient_statistics(model, corpus.train, config)
    found = {}
    for split, stream in (("valid", corpus.valid), ("test", corpus.test)):
        nll = dynamic_evaluation(model, corpus.train, stream, config, statistics)
        found[f"{split}_perplexity"] = perplexity(nll)
    return found | asdict(config)

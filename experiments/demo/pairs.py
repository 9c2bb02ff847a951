"""The demo's texts: questions, answers, and distractors, in data/pairs.tsv."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sparse_attn.evaluation.rows import read_rows

PAIRS = Path(__file__).parent / "data" / "pairs.tsv"


class Pair(NamedTuple):
    """A question, the sentence that answers it, and one on the same topic that does not."""

    question: str
    answer: str
    distractor: str


def read_pairs() -> list[Pair]:
    """The rows of the file."""
    return [Pair(**row) for _, row in read_rows(PAIRS, Pair._fields)]

"""The demo's texts: questions, answers, and distractors, in data/pairs.tsv."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

PAIRS = Path(__file__).parent / "data" / "pairs.tsv"


class Pair(NamedTuple):
    """A question, the sentence that answers it, and one on the same topic that does not."""

    question: str
    answer: str
    distractor: str


def read_pairs(path: Path = PAIRS) -> list[Pair]:
    """The rows of a TSV file with a header."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return [Pair(*row) for row in rows]

"""SimLex-999: correlation of embeddings with human similarity judgements."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import spearmanr
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.evaluation.text_files import read_lines

_COLUMNS = ("word1", "word2", "SimLex999")


@dataclass(frozen=True)
class SimLex:
    """Agreement of embeddings with human similarity.

    Attributes:
        rho: Spearman's rank correlation in [-1, 1]; None if undefined, for fewer than two pairs
            or cosines that are all equal or NaN.
        pairs_found: pairs with both words in the vocabulary, used for rho.
        pairs: pairs in the file.
    """

    rho: float | None
    pairs_found: int
    pairs: int


def simlex(embeddings: Tensor, vocabulary: Sequence[str], path: str | Path) -> SimLex:
    """Return Spearman's rho of cos(e_i, e_j) and the human score over pairs in the vocabulary.

    Hill, Reichart & Korhonen 2015. Pairs with an unknown word are left out; the papers do not say
    how they handle them. 575 of 999 pairs remain with PTB's vocabulary.

    Args:
        embeddings: (V, e), row i for vocabulary[i].
        path: SimLex-999.txt as distributed, tab-separated with a header.

    Raises:
        ValueError: not one embedding per word, or a file with other columns.
        OSError: no such file.
    """
    if embeddings.dim() != 2 or len(embeddings) != len(vocabulary):
        raise ValueError(
            f"embeddings: expected one row for each of {len(vocabulary)} words, got shape "
            f"{tuple(embeddings.shape)}"
        )
    pairs = read_pairs(Path(path))
    places = {word: place for place, word in enumerate(vocabulary)}
    found = [(places[a], places[b], human) for a, b, human in pairs if {a, b} <= places.keys()]
    if len(found) < 2:
        return SimLex(None, len(found), len(pairs))
    left, right, human = zip(*found, strict=True)
    vectors = embeddings.detach().double().cpu()
    cosine = F.cosine_similarity(vectors[list(left)], vectors[list(right)])
    if not cosine.amax() > cosine.amin():
        return SimLex(None, len(found), len(pairs))
    rho = float(spearmanr(cosine.numpy(), human).statistic)
    return SimLex(rho, len(found), len(pairs))


def read_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Read words and human score of each pair; raise the errors of `simlex` for the file."""
    lines = (line for _, line in read_lines(path))
    reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(
            f"{path}: has no column {', '.join(missing)}; expected SimLex-999.txt with its "
            "header, tab separated"
        )
    return [(row["word1"], row["word2"], float(row["SimLex999"])) for row in reader]

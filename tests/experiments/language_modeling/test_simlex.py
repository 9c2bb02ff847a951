"""SimLex-999: rank correlation by hand, words outside the vocabulary, the real file."""

import math
from pathlib import Path

import pytest
import torch

from experiments.language_modeling.simlex import SimLex, simlex

DATA = Path(__file__).parents[4] / "shared" / "data"
HEADER = "word1\tword2\tPOS\tSimLex999\tconc(w1)"
WORDS = ("east", "north", "northeast", "west")
VECTORS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [-3.0, 0.0]])


def write(folder: Path, *pairs: tuple[str, str, float]) -> Path:
    path = folder / "SimLex-999.txt"
    lines = [HEADER, *(f"{a}\t{b}\tN\t{score}\t1" for a, b, score in pairs)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rho_by_hand(tmp_path: Path):
    # cosines 0.71, 0, -1 and human 8, 1, 2: ranks 3 2 1 and 3 1 2, rho = 1 - 6 * 2 / (3 * 8)
    path = write(
        tmp_path,
        ("east", "northeast", 8.0),
        ("north", "west", 1.0),
        ("south", "east", 9.0),
        ("east", "west", 2.0),
        ("up", "down", 3.0),
    )
    found = simlex(VECTORS, WORDS, path)
    assert found == SimLex(pytest.approx(0.5), 3, 5)
    # a cosine knows nothing of lengths
    assert simlex(VECTORS * torch.tensor([[1.0], [9.0], [0.1], [5.0]]), WORDS, path) == found


def test_no_rho_where_there_is_none(tmp_path: Path):
    path = write(tmp_path, ("east", "west", 1.0), ("north", "west", 2.0), ("up", "east", 3.0))
    assert simlex(torch.ones(4, 2), WORDS, path) == SimLex(None, 2, 3)
    assert simlex(torch.full((4, 2), math.nan), WORDS, path) == SimLex(None, 2, 3)
    assert simlex(VECTORS[:2], WORDS[:2], path) == SimLex(None, 0, 3)


def test_pairs_inside_the_vocabulary_of_ptb():
    if not (DATA / "simlex-999").is_dir() or not (DATA / "ptb").is_dir():
        pytest.skip("SimLex-999 or PTB is not at ../shared/data")
    words = tuple(sorted(set((DATA / "ptb" / "ptb.train.txt").read_text().split())))
    found = simlex(torch.randn(len(words), 50), words, DATA / "simlex-999" / "SimLex-999.txt")
    assert (found.pairs_found, found.pairs) == (575, 999)
    assert found.rho is not None
    assert abs(found.rho) < 0.15  # random vectors: sd 1 / sqrt(574) = 0.04

"""Perplexity, top-k error, rank of the log-probabilities and SimLex, by hand and by other ways."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.language_modeling import rank
from experiments.language_modeling.measures import (
    LOG_ZERO,
    log_prob_matrix,
    mean_nll,
    perplexity,
    top_k_error,
)
from experiments.language_modeling.rank import exact_rank, numerical_rank
from experiments.language_modeling.simlex import SimLex, simlex
from sparse_attn import Mapping
from tests.experiments.language_modeling.toys import Bigram, Recurrent, stream

# p(w | v) in row v
TABLE = [[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
TEXT = [0, 1, 2, 0, 0, 1, 1]


def bigram() -> Bigram:
    return Bigram(torch.tensor(TABLE).log())


def nll_by_hand(pairs: list[tuple[int, int]]) -> float:
    return -sum(math.log(TABLE[v][w]) for v, w in pairs) / len(pairs)


@pytest.mark.parametrize("segment", [1, 2, 6, 100])
def test_every_token_but_the_first_is_scored(segment: int):
    pairs = [(0, 1), (1, 2), (2, 0), (0, 0), (0, 1), (1, 1)]
    found = mean_nll(bigram(), torch.tensor(TEXT), 1, segment)
    assert found == pytest.approx(nll_by_hand(pairs), rel=1e-6)


def whole_text_log_probs(model: Recurrent, text: Tensor) -> Tensor:
    """Log-probabilities after each word but the last, by a plain loop over the text."""
    h, rows = torch.zeros(model.again.in_features), []
    for word in text[:-1]:
        h = torch.tanh(model.again.weight @ h + model.embedding.weight[word])
        rows.append(torch.log_softmax(model.head.weight @ h + model.head.bias, 0))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("segment", [1, 7, 1000])
def test_state_is_carried_over_segments_and_dropout_is_off(segment: int):
    model, text = Recurrent().train(), stream(50)
    log_p = whole_text_log_probs(model, text)
    expected = -log_p[torch.arange(49), text[1:]].mean().item()
    assert mean_nll(model, text, 1, segment, progress="valid") == pytest.approx(expected, rel=1e-6)
    matrix = log_prob_matrix(model, text, 49, segment)
    torch.testing.assert_close(matrix, log_p, rtol=1e-5, atol=1e-6)
    assert torch.equal(log_prob_matrix(model, text, 13, segment), matrix[:13])
    assert model.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("nll", "expected"), [(0.0, 1.0), (math.log(58.4), 58.4), (1e4, math.inf), (math.inf, math.inf)]
)
def test_perplexity(nll: float, expected: float):
    assert perplexity(nll) == pytest.approx(expected)
    assert math.isnan(perplexity(math.nan))


@pytest.mark.parametrize("k", [1, 2, 3, 10])
@pytest.mark.parametrize("batch", [1, 3])
def test_top_k_error_is_that_of_a_sort(k: int, batch: int):
    model, text = Bigram(torch.randn(11, 11)), stream(300)
    order = model.embedding.weight.detach().argsort(-1, descending=True).tolist()
    steps = 300 // batch
    pairs = [(int(text[i]), int(text[i + 1])) for i in range(299) if (i + 1) % steps]
    wrong = sum(w not in order[v][:k] for v, w in pairs)
    assert 0 < wrong < len(pairs)
    assert top_k_error(model, text, batch, 17, k) == pytest.approx(wrong / len(pairs), abs=1e-12)


def test_top_k_error_of_models_that_know_nothing():
    text = stream(100)
    assert top_k_error(Bigram(torch.zeros(11, 11)), text, 1, 10) == 1.0
    assert top_k_error(Bigram(torch.full((11, 11), math.nan)), text, 1, 10) == 1.0
    assert top_k_error(Bigram(torch.zeros(11, 11)), text, 1, 10, k=11) == 0.0


def test_log_of_an_exact_zero_is_floored_and_nothing_else():
    scores = torch.tensor([[0.0, -2.0, -200.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    text = torch.tensor([0, 1, 2, 0])
    sparse = log_prob_matrix(Bigram(scores, "sparsemax"), text, 3, 2)
    third = -math.log(3)
    expected = [[0.0, LOG_ZERO, LOG_ZERO], [0.0, LOG_ZERO, LOG_ZERO], [third] * 3]
    torch.testing.assert_close(sparse, torch.tensor(expected))
    assert math.isclose(LOG_ZERO, -87.3365, abs_tol=1e-4)
    dense = log_prob_matrix(Bigram(scores), text, 3, 2)
    assert dense[0, 2] == pytest.approx(-200 - math.log(1 + math.exp(-2)), rel=1e-6)
    assert mean_nll(Bigram(scores, "sparsemax"), text, 1, 2) == math.inf


EPS = 2.0**-23


@pytest.mark.parametrize("shape", [(30, 17), (17, 30), (20, 20), (1, 5), (5, 1)])
@pytest.mark.parametrize("block", [3, 4096])
def test_singular_values_are_those_of_a_decomposition(
    shape: tuple[int, int], block: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rank, "_BLOCK", block)
    matrix = torch.randn(shape)
    found = numerical_rank(matrix)
    expected = torch.linalg.svdvals(matrix.double())
    torch.testing.assert_close(found.singular_values, expected, rtol=1e-12, atol=0)
    assert found.rank == min(shape)
    assert found.sigma_max == pytest.approx(expected[0].item(), rel=1e-12)
    threshold = 0.5 * math.sqrt(shape[0] + shape[1] + 1) * expected[0].item() * EPS
    assert found.tolerance == pytest.approx(threshold, rel=1e-12)
    # as records hold them
    assert found.spectrum()[0] == (1, 1.0)
    smallest = found.singular_values[-1].item() / found.sigma_max
    assert found.spectrum()[-1] == (min(shape), smallest)


def matrix_with(values: list[float], rows: int = 40, columns: int = 50) -> torch.Tensor:
    left = torch.linalg.qr(torch.randn(rows, rows, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(columns, columns, dtype=torch.float64))[0]
    sigma = torch.tensor(values, dtype=torch.float64)
    return left[:, : len(values)] * sigma @ right[: len(values)]


def test_threshold_lies_where_the_paper_puts_it():
    # 1/2 sqrt(91) 2^-23 = 5.69e-7
    assert numerical_rank(matrix_with([3.0, 3e-3, 3 * 5.8e-7])).rank == 3
    assert numerical_rank(matrix_with([3.0, 3e-3, 3 * 5.6e-7])).rank == 2


def toy(mapping: Mapping, bias: bool, dtype: torch.dtype) -> int:
    """M = 60 words, d = 5, N = 400 contexts, all Gaussian."""
    weight, hidden = torch.randn(60, 5, dtype=dtype), torch.randn(400, 5, dtype=dtype)
    scores = hidden @ weight.T
    if bias:
        scores = scores + torch.randn(60, dtype=dtype)
    with torch.no_grad():
        return numerical_rank(mapping.log(scores)).rank


def random_plif() -> Mapping:
    mapping = Mapping("plif", knots=1000)
    with torch.no_grad():
        mapping.raw_slopes.add_(torch.randn(1000))
    return mapping


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
def test_softmax_has_rank_d_plus_1_and_the_others_are_full(bias: bool, dtype: torch.dtype):
    assert toy(Mapping("softmax"), bias, dtype) == (7 if bias else 6)
    for name in ("sigsoftmax", "normalized-sigmoid", "taylor-softmax"):
        assert toy(Mapping(name), bias, dtype) == 60, name
    assert toy(random_plif(), bias, dtype) == 60
    # slopes of 1 make it softmax
    assert toy(Mapping("plif"), bias, dtype) == (7 if bias else 6)


@pytest.mark.parametrize("bias", [False, True])
def test_exact_rank_sees_directions_below_the_threshold_of_float32(bias: bool):
    hidden = torch.randn(400, 5, dtype=torch.float64) * torch.tensor([1.0, 1.0, 1.0, 1e-7, 1e-8])
    scores = hidden @ torch.randn(60, 5, dtype=torch.float64).T
    scores = scores + (10 * torch.randn(60, dtype=torch.float64) if bias else 0.0)
    log_p = Mapping("softmax").log(scores)
    assert exact_rank(log_p).rank == 6 + bias
    assert numerical_rank(log_p).rank == 4 + bias
    assert exact_rank(Mapping("sigsoftmax").log(scores)).rank > 7


DATA = Path(__file__).parents[4] / "shared" / "data"
HEADER = "word1\tword2\tPOS\tSimLex999\tconc(w1)"
WORDS = ("east", "north", "northeast", "west")
VECTORS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [-3.0, 0.0]])


def write_pairs(folder: Path, *pairs: tuple[str, str, float]) -> Path:
    path = folder / "SimLex-999.txt"
    lines = [HEADER, *(f"{a}\t{b}\tN\t{score}\t1" for a, b, score in pairs)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rho_by_hand(tmp_path: Path):
    # cosines 0.71, 0, -1 and human 8, 1, 2: ranks 3 2 1 and 3 1 2, rho = 1 - 6 * 2 / (3 * 8)
    path = write_pairs(
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
    path = write_pairs(tmp_path, ("east", "west", 1.0), ("north", "west", 2.0), ("up", "east", 3.0))
    assert simlex(torch.ones(4, 2), WORDS, path) == SimLex(None, 2, 3)
    assert simlex(torch.full((4, 2), math.nan), WORDS, path) == SimLex(None, 2, 3)
    assert simlex(VECTORS[:2], WORDS[:2], path) == SimLex(None, 0, 3)

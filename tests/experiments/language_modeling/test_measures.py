"""Perplexity, top-k error and the matrix of log-probabilities, against numbers made by hand."""

import math

import pytest
import torch
from torch import Tensor

from experiments.language_modeling.measures import (
    LOG_ZERO,
    log_prob_matrix,
    mean_nll,
    perplexity,
    top_k_error,
)
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


def test_rows_lose_the_remainder_and_their_first_token():
    # rows 0 1 2 and 0 0 1, the last 1 trimmed
    found = mean_nll(bigram(), torch.tensor(TEXT), 2, 100)
    assert found == pytest.approx(nll_by_hand([(0, 1), (1, 2), (0, 0), (0, 1)]), rel=1e-6)


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


def test_mode_is_restored_after_an_error():
    model = Recurrent().train()
    with pytest.raises(ValueError, match="99 is outside the vocabulary"):
        mean_nll(model, torch.tensor([0, 1, 99, 0]), 1, 1)
    assert model.training
    mean_nll(model.eval(), stream(10), 1, 4)
    assert not model.training


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

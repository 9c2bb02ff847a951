"""Dynamic evaluation against a plain loop, and what it must leave as it was."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.language_modeling.dynamic import dynamic_evaluation
from experiments.language_modeling.measures import mean_nll
from experiments.language_modeling.models.lstm import LSTMModel
from experiments.language_modeling.sections import DynamicConfig, ModelConfig, Rates
from sparse_attn.heads import LinearHead
from tests.experiments.language_modeling.toys import Recurrent, stream

TRAIN, TEST = stream(620, seed=2), stream(203, seed=3)
FORMS = ("new", "old")


def recurrent() -> Recurrent:
    return Recurrent().double().train()


def plain_nll(weights: dict[str, Tensor], tokens: Tensor, targets: Tensor, h: Tensor):
    """Mean nll of the words (B, T) and the last state, from the weights alone."""
    nll = []
    for t in range(tokens.shape[1]):
        h = torch.tanh(h @ weights["again.weight"].T + weights["embedding.weight"][tokens[:, t]])
        scores = h @ weights["embedding.weight"].T + weights["head.bias"]
        nll.append(F.cross_entropy(scores, targets[:, t], reduction="none"))
    return torch.stack(nll, 1).mean(), h.detach()


def plain_dynamic_evaluation(model: Recurrent, form: str, rates: Rates, batch: int, length: int):
    """The update of benkrause/dynamic-evaluation, written down from its description."""
    theta = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    squares = {n: torch.zeros_like(p) for n, p in theta.items()}
    rows = TRAIN[: len(TRAIN) // batch * batch].view(batch, -1)
    h, count = torch.zeros(batch, 6, dtype=torch.float64), 0
    for start in range(0, rows.shape[1] - 1, length):
        tokens = rows[:, start : start + length + 1]
        loss, h = plain_nll(theta, tokens[:, :-1], tokens[:, 1:], h)
        for name, g in zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True):
            squares[name] += g**2
        count += 1
    scale = {n: (s / count if form == "new" else s).sqrt() for n, s in squares.items()}
    norm = sum(g.mean() for g in scale.values())
    if form == "new":
        norm = norm / len(scale)
    first = {n: p.detach().clone() for n, p in theta.items()}
    h, total = torch.zeros(1, 6, dtype=torch.float64), 0.0
    for start in range(0, len(TEST) - 1, length):
        tokens = TEST[None, start : start + length + 1]
        loss, h = plain_nll(theta, tokens[:, :-1], tokens[:, 1:], h)
        total += loss.item() * (tokens.shape[1] - 1)
        for name, g in zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True):
            rho = (scale[name] / norm).clamp(max=1 / rates.lamb)
            theta[name].data += rates.lamb * rho * (first[name] - theta[name].data)
            theta[name].data -= rates.lr * g / (scale[name] + rates.epsilon)
    return total / (len(TEST) - 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lamb", [0.02, 3.0])  # 3: rho is clipped at 1 / 3
@pytest.mark.parametrize("length", [5, 7])
def test_equals_a_plain_loop(form, lamb: float, length: int):
    model = recurrent()
    config = DynamicConfig(form, lamb, 0.03, 0.01, length, batch=10)
    found = dynamic_evaluation(model, TRAIN, TEST, config)
    expected = plain_dynamic_evaluation(model, form, config.rates, 10, length)
    assert found == pytest.approx(expected, rel=1e-12)
    assert abs(found - mean_nll(model, TEST, 1, length)) > 1e-4


def lstm() -> LSTMModel:
    config = ModelConfig(
        embedding=6, hidden=8, layers=2, dropout=0.5, dropout_hidden=0.5, weight_drop=0.5
    )
    embedding = torch.nn.Embedding(11, 6)
    return LSTMModel(config, embedding, LinearHead(6, 11, tie=embedding.weight)).train()


@pytest.mark.parametrize("form", FORMS)
def test_without_learning_it_is_static_evaluation(form):
    config = DynamicConfig(form, 0.0, 0.0, batch=10)
    model = recurrent()
    found = dynamic_evaluation(model, TRAIN, TEST, config)
    assert found == mean_nll(model, TEST, 1, 5)
    assert found == pytest.approx(mean_nll(model, TEST, 1, 70), rel=1e-12)
    # torch's LSTM takes another kernel where gradients are wanted
    awd = lstm().double()
    found = dynamic_evaluation(awd, TRAIN, TEST, config)
    assert found == pytest.approx(mean_nll(awd, TEST, 1, 5), rel=1e-14)


@pytest.mark.parametrize("fails", [False, True])
def test_weights_gradients_and_mode_stay(fails: bool):
    model, text = recurrent(), TEST.clone()
    if fails:
        text[100] = 99
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    config = DynamicConfig(lr=0.1, batch=10)
    if fails:
        with pytest.raises(ValueError, match="99 is outside the vocabulary"):
            dynamic_evaluation(model, TRAIN, text, config)
    else:
        first = dynamic_evaluation(model, TRAIN, text, config)
        assert dynamic_evaluation(model, TRAIN, text, config) == first
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name
        assert parameter.grad is not None
        assert (parameter.grad == 7).all()
    assert model.training


def test_defaults_of_each_form():
    assert DynamicConfig().rates == Rates(0.002, 5e-5, 2e-5)
    assert DynamicConfig("old").rates == Rates(0.02, 0.002, 0.001)
    assert DynamicConfig("old", lamb=0.075).rates == Rates(0.075, 0.002, 0.001)
    assert (DynamicConfig().segment, DynamicConfig().batch) == (5, 100)

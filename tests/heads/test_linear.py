"""LinearHead: log p = log map(W h + b), its parameters, and tied weights."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sparse_attn import Mapping
from sparse_attn.heads import AdaptiveHead, Head, LinearHead, MixtureHead
from tests.heads.plain import (
    BY_NAME,
    CASES,
    FLOAT64,
    HIDDEN,
    LEARNED,
    VOCAB,
    assert_same,
    dense_log_prob,
    dense_nll,
    gradients,
    linear_head,
    random_hidden,
    random_targets,
    randomise,
)

cases = pytest.mark.parametrize("case", CASES, ids=str)
with_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])


# Values


@cases
@with_bias
def test_gradients_of_log_prob(case, bias):
    """With respect to the hidden states and every parameter, those of the mapping included."""
    head = linear_head(case, bias=bias)
    hidden = random_hidden(2, 3)
    upstream = torch.randn(2, 3, VOCAB, dtype=torch.float64)
    inputs = (hidden, *head.parameters())
    assert len(inputs) == 2 + bias + len(list(case.mapping.parameters()))
    found = gradients((head.log_prob(hidden) * upstream).sum(), *inputs)
    expected = gradients((dense_log_prob(case, head, hidden) * upstream).sum(), *inputs)
    assert_same(found, expected)


def test_sparse_mapping_gives_minus_infinity_at_zeros():
    """sparsemax of the golden row of spec.md: p = .65, 0, 0, .35."""
    head = LinearHead(1, 4, "sparsemax", bias=False).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [0.2], [-1.5], [0.7]], dtype=torch.float64))
    log_p = head.log_prob(torch.ones(1, dtype=torch.float64))
    expected = torch.tensor([0.65, 0, 0, 0.35], dtype=torch.float64).log()
    assert_same(log_p, expected, rtol=0, atol=1e-12)


# Parameters


@with_bias
def test_parameters(bias):
    head = LinearHead(HIDDEN, VOCAB, bias=bias)
    assert (head.hidden, head.vocab) == (HIDDEN, VOCAB)
    assert head.weight.shape == (VOCAB, HIDDEN)
    assert head.weight.abs().sum() > 0
    if bias:
        assert head.bias.shape == (VOCAB,)
    else:
        assert head.bias is None
    assert len(list(head.parameters())) == 1 + bias


def test_mapping_by_name_and_as_module():
    assert LinearHead(HIDDEN, VOCAB).mapping.name == "softmax"
    assert LinearHead(HIDDEN, VOCAB, "taylor-softmax").mapping.name == "taylor-softmax"
    mapping = Mapping("sigsoftmax", learn="bias")
    head = LinearHead(HIDDEN, VOCAB, mapping)
    assert head.mapping is mapping
    assert any(parameter is mapping.raw_bias for parameter in head.parameters())


@pytest.mark.parametrize("name", ["spherical-softmax", "softmax-abs"])
def test_even_mappings_do_not_start_dead(name):
    """At z = 0 their gradient is exactly zero; a new head must have one."""
    head = LinearHead(HIDDEN, VOCAB, name)
    hidden = torch.randn(7, HIDDEN, requires_grad=True)
    targets = torch.randint(VOCAB, (7,))
    for gradient in gradients(head.nll(hidden, targets), hidden, head.weight):
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize("name", ["softmax", "spherical-softmax", "plif", "monotone"])
def test_heads_are_made_on_the_meta_device(name):
    """As Transformers builds a model before it loads its weights."""
    with torch.device("meta"):
        heads = [LinearHead(HIDDEN, VOCAB, name), MixtureHead(HIDDEN, VOCAB, name)]
        heads.append(AdaptiveHead(16, 20, [5, 10], name).shortlist)
    learned = Mapping("spherical-softmax", learn="eps").to("meta")
    heads.append(LinearHead(4, 7, learned).to("meta"))
    assert all(head.weight.is_meta for head in heads)


@pytest.mark.parametrize("case", LEARNED, ids=str)
def test_mapping_parameters_stay_in_float32_in_a_half_precision_head(case):
    head = LinearHead(HIDDEN, VOCAB, case.mapping).to(torch.bfloat16)
    assert head.weight.dtype == torch.bfloat16
    assert {p.dtype for p in head.mapping.parameters()} == {torch.float32}


# Ties


class Model(nn.Module):
    """The smallest language model: the hidden state is the embedding of the word before."""

    def __init__(self, as_parameter: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        tie = self.embedding.weight if as_parameter else self.embedding
        self.head = LinearHead(HIDDEN, VOCAB, "sigsoftmax", tie=tie)
        self.double()
        randomise(self)


ties = pytest.mark.parametrize("as_parameter", [True, False], ids=["parameter", "embedding"])


@ties
def test_tied_gradients_of_both_uses_add_up_once(as_parameter):
    model = Model(as_parameter)
    assert model.head.weight is model.embedding.weight
    assert sorted(n for n, _ in model.named_parameters()) == ["embedding.weight", "head.bias"]
    words, targets = torch.randint(VOCAB, (4, 6)), random_targets(4, 6)
    model.head.nll(model.embedding(words), targets, chunk=5).backward()
    found = model.embedding.weight.grad

    as_input = model.embedding.weight.detach().clone().requires_grad_()
    as_output = model.embedding.weight.detach().clone().requires_grad_()
    scores = F.embedding(words, as_input) @ as_output.T + model.head.bias
    log_p = BY_NAME["sigsoftmax"].log_prob(scores, model.head.mapping)
    expected = sum(gradients(dense_nll(log_p, targets), as_input, as_output))
    assert_same(found, expected)


@ties
def test_tie_survives_what_modules_go_through(as_parameter):
    """Casting, deepcopy and loading a state dict keep one weight."""
    model = copy.deepcopy(Model(as_parameter)).float()
    model.load_state_dict(Model(as_parameter).state_dict())
    assert model.head.weight is model.embedding.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head.nll(model.embedding(torch.tensor([1])), torch.tensor([2])).backward()
    optimizer.step()
    assert torch.equal(model.head.weight, model.embedding.weight)


def test_tie_to_a_float64_embedding_keeps_its_dtype():
    embedding = nn.Embedding(VOCAB, HIDDEN, dtype=torch.float64)
    head = LinearHead(HIDDEN, VOCAB, tie=embedding)
    assert head.weight is embedding.weight
    log_p = head.log_prob(random_hidden(3))
    assert log_p.dtype == torch.float64


def test_single_word_vocabulary():
    """log 1 = 0, and nothing to learn."""
    head = LinearHead(HIDDEN, 1, "sigsoftmax").double()
    hidden = random_hidden(3)
    assert_same(head.log_prob(hidden), torch.zeros(3, 1, dtype=torch.float64), **FLOAT64)
    loss = head.nll(hidden, torch.zeros(3, dtype=torch.long))
    assert loss.item() == pytest.approx(0, abs=1e-12)


def test_a_head_without_its_loss_cannot_be_made():
    class Half(Head):
        def log_prob(self, hidden):
            return hidden

    with pytest.raises(TypeError, match="token_losses"):
        Half(2, 3, "softmax")

"""What heads hold: parameters, mappings, tied weights, and what modules go through."""

import copy

import pytest
import torch
from torch import nn

from sparse_attn import Mapping
from sparse_attn.heads import (
    AdaptiveHead,
    LinearHead,
    MixtureHead,
    MultiLabelHead,
    parameter_groups,
)
from tests.heads.plain import (
    BY_NAME,
    COMPONENTS,
    CUTOFFS,
    HIDDEN,
    LEARNED,
    VOCAB,
    WORDS,
    Problem,
    assert_same,
    gradients,
    random_hidden,
    random_targets,
    randomise,
)


def shapes(head):
    return {name: tuple(parameter.shape) for name, parameter in head.named_parameters()}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_parameters(bias):
    """Grave et al.: hidden // div_value^i for cluster i, the clusters themselves in q."""
    linear = LinearHead(HIDDEN, VOCAB, bias=bias)
    own = {"bias": (VOCAB,)} if bias else {}
    assert (linear.hidden, linear.vocab) == (HIDDEN, VOCAB)
    assert shapes(linear) == {"weight": (VOCAB, HIDDEN), **own}
    mixture = MixtureHead(HIDDEN, VOCAB, components=4, latent=3, bias=bias)
    assert shapes(mixture) == {
        "weight": (VOCAB, 3),
        "latent.weight": (12, HIDDEN),
        "latent.bias": (12,),
        "prior.weight": (4, HIDDEN),
        **own,
    }
    by_default = MixtureHead(HIDDEN, VOCAB)
    assert (by_default.components, by_default.weight.shape) == (15, (VOCAB, HIDDEN))
    adaptive = AdaptiveHead(64, 1000, [10, 100, 500], div_value=4.0)
    assert adaptive.shortlist.weight.shape == (13, 64)
    sizes = [(c.projection.weight.shape, c.head.weight.shape) for c in adaptive.clusters]
    assert sizes == [((16, 64), (90, 16)), ((4, 64), (400, 4)), ((1, 64), (500, 1))]
    assert (adaptive.hidden, adaptive.vocab, adaptive.cutoffs) == (64, 1000, (10, 100, 500))


def test_one_mapping_for_all_parts():
    """MoS + PLIF: one set of slopes (Ganea et al. count 2 K parameters once)."""
    assert LinearHead(HIDDEN, VOCAB).mapping.name == "softmax"
    assert LinearHead(HIDDEN, VOCAB, "taylor-softmax").mapping.name == "taylor-softmax"
    for make in (
        lambda mapping: LinearHead(HIDDEN, VOCAB, mapping),
        lambda mapping: MixtureHead(HIDDEN, VOCAB, mapping, components=4),
        lambda mapping: AdaptiveHead(HIDDEN, WORDS, CUTOFFS, mapping, div_value=1.5),
    ):
        mapping = Mapping("plif", knots=10)
        head = make(mapping)
        assert head.mapping is mapping
        assert [n for n, p in head.named_parameters() if len(p) == 10] == ["mapping.raw_slopes"]


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
    labels = MultiLabelHead(4, 3, "r-softmax", sparsity="predicted").to("meta")
    assert labels(torch.zeros(5, 4, device="meta")).shape == (5, 3)


@pytest.mark.parametrize("case", LEARNED, ids=str)
def test_mapping_parameters_stay_in_float32_in_a_half_precision_head(case):
    head = LinearHead(HIDDEN, VOCAB, case.mapping).to(torch.bfloat16)
    assert head.weight.dtype == torch.bfloat16
    assert {p.dtype for p in head.mapping.parameters()} == {torch.float32}


# Ties


class Model(nn.Module):
    """The smallest language model: the hidden state is the embedding of the word before."""

    def __init__(self, make, as_parameter: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        tie = self.embedding.weight if as_parameter else self.embedding
        self.head = make(HIDDEN, VOCAB, "sigsoftmax", tie=tie)
        self.double()
        randomise(self)


ties = pytest.mark.parametrize("as_parameter", [True, False], ids=["parameter", "embedding"])
kinds = pytest.mark.parametrize("make", [LinearHead, MixtureHead])


@kinds
@ties
def test_tied_gradients_of_both_uses_add_up_once(make, as_parameter):
    model = Model(make, as_parameter)
    weight = model.embedding.weight
    assert model.head.weight is weight
    assert sum(parameter is weight for parameter in model.parameters()) == 1
    words, targets = torch.randint(VOCAB, (4, 6)), random_targets(4, 6)
    model.head.nll(model.embedding(words), targets, chunk=5).backward()
    problem = Problem(make, BY_NAME["sigsoftmax"])
    expected = gradients(problem.loss(model.head, model.embedding(words), targets), weight)
    assert_same([weight.grad], expected)


@kinds
@ties
def test_a_tie_survives_what_modules_go_through(make, as_parameter):
    """Casting, deepcopy and loading a state dict keep one weight."""
    model = copy.deepcopy(Model(make, as_parameter)).float()
    model.load_state_dict(Model(make, as_parameter).state_dict())
    assert model.head.weight is model.embedding.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head.nll(model.embedding(torch.tensor([1])), torch.tensor([2])).backward()
    optimizer.step()
    assert torch.equal(model.head.weight, model.embedding.weight)


def test_a_tied_embedding_sets_the_dtype_and_the_size_of_the_latent():
    embedding = nn.Embedding(VOCAB, HIDDEN, dtype=torch.float64)
    assert LinearHead(HIDDEN, VOCAB, tie=embedding).log_prob(random_hidden(3)).dtype == torch.double
    smaller = nn.Embedding(VOCAB, 4)
    head = MixtureHead(HIDDEN, VOCAB, components=COMPONENTS, tie=smaller)
    assert head.weight is smaller.weight
    assert head.log_prob(torch.randn(2, HIDDEN)).shape == (2, VOCAB)


# Learning rates


def test_mappings_have_their_own_learning_rate():
    """Every parameter in one group, the tied one once; those of the mapping at their own rate."""
    embedding = nn.Embedding(VOCAB, HIDDEN)
    model = nn.ModuleDict(
        {
            "embedding": embedding,
            "rnn": nn.Linear(HIDDEN, HIDDEN),
            "head": LinearHead(HIDDEN, VOCAB, Mapping("plif", knots=10), tie=embedding),
            "learned": LinearHead(HIDDEN, VOCAB, Mapping("sigsoftmax", learn="bias")),
        }
    )
    groups = parameter_groups(model, lr=20.0, mapping_lr=0.02)
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(rate)
    assert set(rate) == {id(p) for p in model.parameters()}
    own = (model["head"].mapping.raw_slopes, model["learned"].mapping.raw_bias)
    assert [rate.pop(id(parameter)) for parameter in own] == [0.02, 0.02]
    assert set(rate.values()) == {20.0}
    # no group is empty where a mapping has nothing to learn
    (group,) = parameter_groups(LinearHead(HIDDEN, VOCAB), lr=1.0, mapping_lr=0.1)
    assert len(group["params"]) == 2

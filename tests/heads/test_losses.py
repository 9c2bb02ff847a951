"""The losses of sparse output layers, and what refuses to be trained by the log of a zero."""

import math

import pytest
import torch
from torch.nn import functional as F

from sparse_attn import Mapping, functional
from sparse_attn.heads import LinearHead
from sparse_attn.heads.base import positive
from tests.heads.plain import (
    HIDDEN,
    IGNORED,
    VOCAB,
    assert_same,
    gradients,
    random_hidden,
    random_targets,
    randomise,
)


def dense_entmax_loss(scores, targets, alpha):
    """(p - e_c) . z + H(p), with Tsallis' H = sum (p - p^alpha) / (alpha (alpha - 1)).

    Blondel, Martins and Niculae 2019; a p that is held constant does not change the gradient.
    """
    p = functional.entmax(scores.detach(), alpha)
    if alpha == 1:
        entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    else:
        entropy = (p - p**alpha).sum(-1) / (alpha * (alpha - 1))
    one_hot = F.one_hot(targets, scores.shape[-1])
    return ((p - one_hot) * scores).sum(-1) + entropy


SPARSE = [
    ("sparsemax", {}, lambda z, c: dense_entmax_loss(z, c, 2.0)),
    ("entmax", {"alpha": 1.5}, lambda z, c: dense_entmax_loss(z, c, 1.5)),
    ("entmax", {"alpha": 1.2}, lambda z, c: dense_entmax_loss(z, c, 1.2)),
]
sparse = pytest.mark.parametrize(("name", "options", "dense"), SPARSE)


def sparse_head(name, options):
    head = LinearHead(HIDDEN, VOCAB, Mapping(name, **options)).double()
    randomise(head, 1.0)
    return head


@sparse
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_head_loss(name, options, dense, reduction, chunk):
    head, hidden, targets = sparse_head(name, options), random_hidden(2, 4), random_targets(2, 4)
    kept = targets != IGNORED
    assert kept.any()
    assert not kept.all()
    found = head.loss(hidden, targets, reduction=reduction, chunk=chunk)
    expected = dense(head.scores(hidden), targets.where(kept, 0)) * kept
    expected = {"none": expected, "sum": expected.sum(), "mean": expected.sum() / kept.sum()}
    assert_same(found, expected[reduction])
    upstream = torch.randn_like(found)
    inputs = (hidden, head.weight, head.bias)
    assert_same(
        gradients((found * upstream).sum(), *inputs),
        gradients((expected[reduction] * upstream).sum(), *inputs),
    )


# Zeros and the logarithm

OWN = [Mapping("sparsemax"), Mapping("entmax")]
ZEROS = [
    Mapping("r-softmax", r=0.3),
    Mapping("t-softmax", t=2.0),
    Mapping("normalized-relu"),
    Mapping("sparsegen"),
    Mapping("sparsehourglass", q=0.5),
    Mapping("top-k-softmax", k=3.0),
    Mapping("top-p-softmax", p=0.5),
    Mapping("threshold-softmax", lam=0.1),
    Mapping("max-gap", a=1.0),
]


@pytest.mark.parametrize(
    ("mapping", "method"),
    [*((m, "nll") for m in OWN + ZEROS), *((m, "loss") for m in ZEROS)],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_log_of_a_zero_trains_nothing(mapping, method):
    head = LinearHead(HIDDEN, VOCAB, mapping)
    hidden, targets = torch.randn(4, HIDDEN), torch.randint(VOCAB, (4,))
    advice = "loss" if mapping in OWN else "(use|train)"
    with pytest.raises(ValueError, match=rf"(?s){mapping.name}.*{advice}"):
        getattr(head, method)(hidden, targets)


def test_mappings_that_reach_zero_at_the_end_of_a_range():
    """spherical-softmax has zeros at eps = 0, entmax has none at alpha = 1."""
    hidden, targets = torch.randn(4, HIDDEN), torch.randint(VOCAB, (4,))
    spherical = LinearHead(HIDDEN, VOCAB, Mapping("spherical-softmax", eps=0.0))
    with pytest.raises(ValueError, match="spherical-softmax"):
        spherical.nll(hidden, targets)
    entropic = LinearHead(HIDDEN, VOCAB, Mapping("entmax", alpha=1.0))
    expected = F.cross_entropy(entropic.scores(hidden), targets)
    assert_same(entropic.loss(hidden, targets), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mapping", OWN + ZEROS, ids=lambda mapping: mapping.name)
def test_nll_may_be_measured(mapping):
    """Infinite where the target has probability 0."""
    head = LinearHead(HIDDEN, VOCAB, mapping).double()
    randomise(head, 1.0)
    hidden, targets = random_hidden(60), random_targets(60, ignored=False)
    with torch.no_grad():
        found = head.nll(hidden, targets, reduction="none", chunk=7)
        expected = -head.log_prob(hidden).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        assert_same(found, expected)
        assert found.isinf().any()
        assert head.nll(hidden, targets) == math.inf


def test_a_frozen_sparse_head_is_measured_without_no_grad():
    head = LinearHead(4, 7, "sparsemax").requires_grad_(False)
    hidden, targets = torch.randn(3, 4), torch.tensor([0, 1, 2])
    assert (head.nll(hidden, targets) >= 0).all()
    with pytest.raises(ValueError, match="exact zeros"):
        head.nll(hidden.requires_grad_(), targets)


def test_whether_zeros_can_occur_follows_the_parameters():
    assert positive(Mapping("spherical-softmax", eps=0.1))
    assert not positive(Mapping("spherical-softmax", eps=0.0))
    assert positive(Mapping("weighted-softmax", weights=[1.0, 2.0]))
    assert not positive(Mapping("weighted-softmax", weights=[1.0, 0.0]))
    assert positive(Mapping("mixed-sparsemax", mix=0.5))
    assert not positive(Mapping("mixed-sparsemax", mix=1.0))
    assert not positive(Mapping("normalized-relu"))


def test_nan_in_the_loss_of_a_sparse_head():
    head, hidden = sparse_head("sparsemax", {}), random_hidden(6, grad=False)
    targets = random_targets(6, ignored=False)
    clean = head.loss(hidden, targets, reduction="none")
    hidden[3, 1] = math.nan
    found = head.loss(hidden, targets, reduction="none", chunk=4)
    assert found.isnan().tolist() == [False, False, False, True, False, False]
    assert_same(found[:3], clean[:3])

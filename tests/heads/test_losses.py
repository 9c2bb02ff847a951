"""The losses of sparse output layers, and what refuses to be trained by the log of a zero."""

import math

import entmax
import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from sparse_attn import Mapping, functional
from sparse_attn.heads import LinearHead
from sparse_attn.losses import entmax_loss, sparsemax_loss
from tests.heads.plain import (
    CHECK,
    HIDDEN,
    IGNORED,
    VOCAB,
    assert_same,
    gradients,
    random_hidden,
    random_targets,
    randomise,
)

Z = (1.0, 0.2, -1.5, 0.7)
ALPHAS = (1.0, 1.2, 1.5, 2.0)
FOURTH_DIGIT = {"rtol": 0, "atol": 5e-5}


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


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


# Values


def test_golden_value_of_sparsemax_loss():
    """Spec: target 1 -> .9225. By hand with tau = .35: target 0 .1225, 2 2.6225, 3 .4225."""
    scores = row(*Z).expand(4, -1)
    expected = torch.tensor([0.1225, 0.9225, 2.6225, 0.4225], dtype=torch.float64)
    assert_same(sparsemax_loss(scores, torch.arange(4)), expected, rtol=0, atol=1e-12)


def test_two_classes_are_the_huber_classification_loss():
    """u = z_c - z_j: 0 for u >= 1, (1 - u)^2 / 4 inside, -u for u <= -1."""
    u = torch.linspace(-3, 3, 61, dtype=torch.float64)
    scores = torch.stack([u, torch.zeros_like(u)], -1) + 0.7
    expected = torch.where(u >= 1, 0.0, torch.where(u <= -1, -u, (1 - u) ** 2 / 4))
    assert_same(sparsemax_loss(scores, torch.zeros(61, dtype=torch.long)), expected)


def test_sparsemax_loss_equals_the_one_of_the_entmax_package():
    scores, targets = torch.randn(20, 7, dtype=torch.float64) * 2, torch.randint(7, (20,))
    expected = entmax.sparsemax_loss(scores, targets)
    assert_same(sparsemax_loss(scores, targets), expected)


def test_entmax15_loss_equals_the_one_of_the_entmax_package():
    scores, targets = torch.randn(20, 7, dtype=torch.float64) * 2, torch.randint(7, (20,))
    expected = entmax.entmax15_loss(scores, targets)
    assert_same(entmax_loss(scores, targets, 1.5), expected)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_loss_equals_its_definition(alpha):
    scores, targets = torch.randn(20, 7, dtype=torch.float64) * 2, torch.randint(7, (20,))
    expected = dense_entmax_loss(scores, targets, alpha)
    assert_same(entmax_loss(scores, targets, alpha), expected)


def test_ends_of_entmax_loss():
    """alpha = 1 is cross-entropy, alpha = 2 the sparsemax loss."""
    scores, targets = torch.randn(20, 7, dtype=torch.float64) * 2, torch.randint(7, (20,))
    cross_entropy = F.cross_entropy(scores, targets, reduction="none")
    assert_same(entmax_loss(scores, targets, 1.0), cross_entropy)
    assert_same(entmax_loss(scores, targets, 2.0), sparsemax_loss(scores, targets))


def test_entmax_loss_is_continuous_at_alpha_one():
    scores, targets = torch.randn(20, 7, dtype=torch.float64), torch.randint(7, (20,))
    near, at = entmax_loss(scores, targets, 1 + 1e-6), entmax_loss(scores, targets, 1.0)
    assert_same(near, at, rtol=0, atol=1e-4)


# Properties


def losses():
    pairs = [("sparsemax", sparsemax_loss, functional.sparsemax)]
    for alpha in ALPHAS:
        pairs.append(
            (
                f"entmax-{alpha}",
                lambda z, c, alpha=alpha: entmax_loss(z, c, alpha),
                lambda z, alpha=alpha: functional.entmax(z, alpha),
            )
        )
    return pytest.mark.parametrize(
        ("loss", "mapping"), [p[1:] for p in pairs], ids=[p[0] for p in pairs]
    )


@losses()
def test_gradient_is_p_minus_one_hot(loss, mapping):
    scores = (2 * torch.randn(20, 7, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(7, (20,))
    upstream = torch.randn(20, dtype=torch.float64)
    (found,) = gradients((loss(scores, targets) * upstream).sum(), scores)
    p = mapping(scores.detach())
    assert_same(found, upstream.unsqueeze(-1) * (p - F.one_hot(targets, 7)))


@losses()
def test_gradcheck(loss, mapping):
    scores = torch.randn(4, 5, dtype=torch.float64).requires_grad_()
    assert gradcheck(lambda z: loss(z, torch.tensor([0, 1, 2, 3])), scores, **CHECK)


@losses()
def test_convex_non_negative_and_blind_to_shifts(loss, mapping):
    one, two = (3 * torch.randn(50, 7, dtype=torch.float64) for _ in range(2))
    targets = torch.randint(7, (50,))
    chord = 0.3 * loss(one, targets) + 0.7 * loss(two, targets)
    assert (loss(0.3 * one + 0.7 * two, targets) <= chord + 1e-12).all()
    assert (loss(one, targets) >= 0).all()
    assert_same(loss(one + 5.0, targets), loss(one, targets))


@pytest.mark.parametrize(("alpha", "margin"), [(2.0, 1.0), (1.5, 2.0), (1.2, 5.0)])
def test_zero_set(alpha, margin):
    """Exactly 0 iff the target leads by 1 / (alpha - 1)."""
    gaps = torch.tensor([margin / 2, margin, margin + 0.1, margin + 30], dtype=torch.float64)
    scores = torch.stack([gaps, torch.zeros(4), torch.full((4,), -2.0)], -1).double()
    found = entmax_loss(scores, torch.zeros(4, dtype=torch.long), alpha)
    assert found[0] > 1e-3
    assert_same(found[1:], torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    if alpha == 2:
        assert_same(sparsemax_loss(scores, torch.zeros(4, dtype=torch.long)), found)


@losses()
def test_large_scores(loss, mapping):
    """1e4 and its square are no trouble in float32, nor is 1e4 in float16."""
    scores, targets = torch.tensor([[1e4, 1e4 - 0.5, -1e4]]), torch.tensor([1])
    small = loss(torch.tensor([[0.5, 0.0, -2e4]], dtype=torch.float64), targets)
    assert_same(loss(scores, targets).double(), small, rtol=1e-3, atol=1e-3)
    half = torch.tensor([[0.5, 0.0, -1e4]], dtype=torch.float16)
    assert_same(loss(half, targets).double(), small, rtol=2e-3, atol=2e-3)


@losses()
def test_shapes(loss, mapping):
    """One loss a row: 1-D, 2-D, 3-D and empty scores."""
    scores, targets = torch.randn(2, 3, 7, dtype=torch.float64), torch.randint(7, (2, 3))
    whole = loss(scores, targets)
    assert whole.shape == (2, 3)
    assert_same(loss(scores[1], targets[1]), whole[1])
    assert_same(loss(scores[1, 2], targets[1, 2]), whole[1, 2])
    assert loss(scores[:0], targets[:0]).shape == (0, 3)


@losses()
def test_nan_stays_in_its_row(loss, mapping):
    scores, targets = torch.randn(3, 7, dtype=torch.float64), torch.randint(7, (3,))
    clean = loss(scores, targets)
    scores[1, 2] = math.nan
    found = loss(scores, targets)
    assert found[1].isnan()
    assert_same(found[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("alpha", [0.5, 2.5, math.nan])
def test_alpha_out_of_range(alpha):
    with pytest.raises(ValueError, match="alpha"):
        entmax_loss(row(*Z), torch.tensor([0]), alpha)


# Heads

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


@sparse
def test_head_loss_of_nothing(name, options, dense):
    head, hidden = sparse_head(name, options), random_hidden(3)
    assert head.loss(hidden, torch.full((3,), IGNORED)).isnan()
    assert head.loss(hidden[:0], torch.zeros(0, dtype=torch.long)).isnan()
    assert head.loss(hidden, torch.full((3,), IGNORED), reduction="sum").item() == 0


@sparse
def test_training_by_its_own_loss_reaches_zero(name, options, dense):
    """NLL never does."""
    head = LinearHead(HIDDEN, VOCAB, Mapping(name, **options))
    hidden, targets = F.one_hot(torch.arange(4), HIDDEN).float(), torch.tensor([3, 1, 4, 1])
    optimizer = torch.optim.Adam(head.parameters(), lr=0.3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = head.loss(hidden, targets)
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-6
    assert torch.equal(head.log_prob(hidden).argmax(-1), targets)


# Zeros and the logarithm

ZEROS = [
    Mapping("r-softmax", r=0.3),
    Mapping("t-softmax", t=2.0),
    Mapping("normalized-relu"),
    Mapping("sparsegen"),
    Mapping("sparsehourglass", q=0.5),
    Mapping("top-k-softmax", k=3.0),
]
zeros = pytest.mark.parametrize("mapping", ZEROS, ids=lambda mapping: mapping.name)


@zeros
@pytest.mark.parametrize("method", ["nll", "loss"])
def test_mappings_with_zeros_and_no_loss_refuse_to_be_trained(mapping, method):
    head = LinearHead(HIDDEN, VOCAB, mapping)
    hidden, targets = torch.randn(4, HIDDEN), torch.randint(VOCAB, (4,))
    with pytest.raises(ValueError, match=rf"(?s){mapping.name}.*(use|train)"):
        getattr(head, method)(hidden, targets)


@pytest.mark.parametrize("name", ["sparsemax", "entmax"])
def test_nll_of_sparsemax_and_entmax_names_their_loss(name):
    head = LinearHead(HIDDEN, VOCAB, name).train()
    with pytest.raises(ValueError, match=rf"(?s){name}.*loss"):
        head.nll(torch.randn(4, HIDDEN), torch.randint(VOCAB, (4,)))


def test_mappings_that_reach_zero_at_the_end_of_a_range():
    """spherical-softmax has zeros at eps = 0, entmax has none at alpha = 1."""
    hidden, targets = torch.randn(4, HIDDEN), torch.randint(VOCAB, (4,))
    spherical = LinearHead(HIDDEN, VOCAB, Mapping("spherical-softmax", eps=0.0))
    with pytest.raises(ValueError, match="spherical-softmax"):
        spherical.nll(hidden, targets)
    entropic = LinearHead(HIDDEN, VOCAB, Mapping("entmax", alpha=1.0))
    expected = F.cross_entropy(entropic.scores(hidden), targets)
    assert_same(entropic.loss(hidden, targets), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mapping", [Mapping("sparsemax"), Mapping("entmax"), *ZEROS], ids=lambda mapping: mapping.name
)
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

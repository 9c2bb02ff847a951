"""Bad input to heads: errors that name the argument, what was expected and what came."""

import math

import pytest
import torch
from torch import nn

from sparse_attn.heads import LinearHead, MixtureHead
from tests.heads.plain import (
    BY_NAME,
    HIDDEN,
    IGNORED,
    VOCAB,
    assert_same,
    gradients,
    linear_head,
    mixture_head,
    random_hidden,
    random_targets,
)

HEADS = {
    "linear": lambda: linear_head(BY_NAME["sigsoftmax"]),
    "mixture": lambda: mixture_head(BY_NAME["sigsoftmax"]),
    "sparse": lambda: LinearHead(HIDDEN, VOCAB, "sparsemax").double(),
}
heads = pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
dense_heads = pytest.mark.parametrize(
    "make", [HEADS["linear"], HEADS["mixture"]], ids=["linear", "mixture"]
)


# Targets


@heads
@pytest.mark.parametrize("value", [-1, VOCAB, 10**9, -101])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_target_outside_the_vocabulary(make, value, reduction):
    """The message names the argument, the range and the value."""
    head, hidden = make(), random_hidden(2, 3)
    targets = torch.tensor([[0, 1, IGNORED], [value, 2, VOCAB - 1]])
    with pytest.raises(ValueError, match="targets") as error:
        head.loss(hidden, targets, reduction=reduction, chunk=2)
    assert str(value) in str(error.value)
    assert str(VOCAB) in str(error.value) or str(VOCAB - 1) in str(error.value)


@heads
def test_the_ignored_index_is_the_one_that_is_given(make):
    """-100 is no target any more once another index is ignored."""
    with pytest.raises(ValueError, match=r"targets.*-100"):
        make().loss(random_hidden(2), torch.tensor([0, IGNORED]), ignore_index=-1)


@heads
@pytest.mark.parametrize("shape", [(3,), (2, 4), (3, 2), (2, 3, 1), (6,), ()], ids=str)
def test_targets_of_another_shape(make, shape):
    """Also those that have the right number of elements, or would broadcast."""
    with pytest.raises(ValueError, match="targets") as error:
        make().loss(random_hidden(2, 3), torch.zeros(shape, dtype=torch.long))
    assert "(2, 3)" in str(error.value)
    assert str(shape) in str(error.value)


@heads
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_targets_of_another_dtype(make, dtype):
    with pytest.raises((TypeError, ValueError), match="targets") as error:
        make().loss(random_hidden(3), torch.zeros(3, dtype=dtype))
    assert str(dtype) in str(error.value)


# Hidden states


@heads
@pytest.mark.parametrize("method", ["log_prob", "loss"])
def test_hidden_of_another_size(make, method):
    arguments = (torch.zeros(2, dtype=torch.long),) if method == "loss" else ()
    with pytest.raises(ValueError, match="hidden") as error:
        getattr(make(), method)(torch.randn(2, HIDDEN + 1, dtype=torch.float64), *arguments)
    assert str(HIDDEN) in str(error.value)
    assert str(HIDDEN + 1) in str(error.value)


@dense_heads
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_nan_stays_in_its_token(make, bad, chunk):
    """The loss of that token, and of no other, also within a chunk."""
    head, hidden = make(), random_hidden(6, grad=False)
    targets = random_targets(6, ignored=False)
    clean = head.nll(hidden, targets, reduction="none", chunk=chunk)
    poisoned = hidden.clone()
    poisoned[3, 1] = bad
    found = head.nll(poisoned, targets, reduction="none", chunk=chunk)
    others = torch.arange(6) != 3
    assert_same(found[others], clean[others])
    if math.isnan(bad):
        assert found[3].isnan()
        assert head.nll(poisoned, targets, chunk=chunk).isnan()


def test_nan_in_the_loss_of_a_sparse_head():
    head, hidden = HEADS["sparse"](), random_hidden(6, grad=False)
    targets = random_targets(6, ignored=False)
    clean = head.loss(hidden, targets, reduction="none")
    hidden[3, 1] = math.nan
    found = head.loss(hidden, targets, reduction="none", chunk=4)
    assert found.isnan().tolist() == [False, False, False, True, False, False]
    assert_same(found[:3], clean[:3])


@dense_heads
def test_gradient_of_the_other_tokens_survives_a_nan(make):
    """With respect to the hidden states: rows do not meet there."""
    head, hidden, targets = make(), random_hidden(4, grad=False), torch.tensor([0, 1, 2, 3])
    poisoned = hidden.clone()
    poisoned[2] = math.nan
    found, expected = (
        gradients(head.nll(states, targets, reduction="sum"), states)[0]
        for states in (poisoned.requires_grad_(), hidden.requires_grad_())
    )
    assert found[2].isnan().any()
    assert_same(found[[0, 1, 3]], expected[[0, 1, 3]])


# Options of a call


@heads
@pytest.mark.parametrize("reduction", ["average", "", None])
def test_unknown_reduction(make, reduction):
    with pytest.raises(ValueError, match="reduction") as error:
        make().loss(random_hidden(3), random_targets(3), reduction=reduction)
    assert all(known in str(error.value) for known in ("mean", "sum", "none"))


@heads
@pytest.mark.parametrize("chunk", [0, -1])
def test_chunk_below_one(make, chunk):
    with pytest.raises(ValueError, match=f"chunk={chunk}"):
        make().loss(random_hidden(3), random_targets(3), chunk=chunk)


# Making a head


@pytest.mark.parametrize("components", [0, -3])
def test_components_below_one(components):
    with pytest.raises(ValueError, match=f"components={components}"):
        MixtureHead(HIDDEN, VOCAB, components=components)


@pytest.mark.parametrize("latent", [0, -3])
def test_latent_below_one(latent):
    with pytest.raises(ValueError, match=f"latent={latent}"):
        MixtureHead(HIDDEN, VOCAB, latent=latent)


@pytest.mark.parametrize("make", [LinearHead, MixtureHead])
@pytest.mark.parametrize(("hidden", "vocab", "name"), [(0, 5, "hidden"), (5, 0, "vocab")])
def test_sizes_below_one(make, hidden, vocab, name):
    with pytest.raises(ValueError, match=f"{name}=0"):
        make(hidden, vocab)


@pytest.mark.parametrize("as_parameter", [True, False], ids=["parameter", "embedding"])
@pytest.mark.parametrize("shape", [(VOCAB, HIDDEN + 1), (VOCAB + 1, HIDDEN), (HIDDEN, VOCAB)])
def test_tie_of_another_shape(as_parameter, shape):
    embedding = nn.Embedding(*shape)
    with pytest.raises(ValueError, match="tie") as error:
        LinearHead(HIDDEN, VOCAB, tie=embedding.weight if as_parameter else embedding)
    assert str(shape) in str(error.value)
    assert str((VOCAB, HIDDEN)) in str(error.value)


def test_tie_of_a_mixture_has_the_vocabulary_and_the_latent_size():
    with pytest.raises(ValueError, match="tie"):
        MixtureHead(HIDDEN, VOCAB, tie=nn.Embedding(VOCAB + 1, HIDDEN))
    with pytest.raises(ValueError, match=r"tie|latent"):
        MixtureHead(HIDDEN, VOCAB, tie=nn.Embedding(VOCAB, 4), latent=3)


@pytest.mark.parametrize("make", [LinearHead, MixtureHead])
def test_unknown_mapping(make):
    with pytest.raises(ValueError, match="sigsoftmax"):
        make(HIDDEN, VOCAB, "sigsofmax")


def test_unknown_prior():
    with pytest.raises(ValueError, match="sigsoftmax"):
        MixtureHead(HIDDEN, VOCAB, prior="sigsofmax")

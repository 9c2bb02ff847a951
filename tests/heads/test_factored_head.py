"""The factored head as a module: it trains, saves and converts."""

import pytest
import torch
from torch.nn import functional as F

from sparse_attn.heads import match_prior
from tests.heads.small_factored import (
    HIDDEN,
    VOCAB,
    assert_untouched,
    batch,
    make,
    state,
)

# Training


def test_dead_start():
    """At W = 0 no gradient reaches the spherical loss; the layer does not start there."""
    head, (hidden, targets) = make(), batch()
    head(hidden, targets).backward()
    assert head.step(0.1) > 1e-3
    head.load_weight(torch.zeros(VOCAB, HIDDEN))
    head(hidden, targets).backward()
    assert head.step(0.1) == 0
    biased = make(bias=True)
    biased.load_weight(torch.zeros(VOCAB, HIDDEN), torch.ones(VOCAB))
    biased(hidden, targets).backward()
    assert biased.step(0.1) > 1e-3


# In and out


def test_state_dict_goes_on_bit_by_bit():
    head = make("taylor", bias=True)
    head(*batch()).backward()
    head.step(0.3, weight_decay=0.1)
    other = make("taylor", bias=True)
    other.load_state_dict(head.state_dict())
    hidden, targets = batch(9)
    for each in (head, other):
        for _ in range(20):
            each(hidden, targets).backward()
            each.step(0.7)
    assert_untouched(other, state(head))


@pytest.mark.parametrize("objective", ["spherical", "taylor"])
@pytest.mark.parametrize("bias", [False, True])
def test_to_linear_has_the_loss_as_its_likelihood(objective, bias):
    head = make(objective, eps=0.4, bias=bias)
    for _ in range(5):
        head(*batch()).backward()
        head.step(0.3)
    linear, (hidden, targets) = head.to_linear(), batch()
    assert linear.log_prob(hidden).exp().sum(-1).sub(1).abs().max() < 1e-5
    torch.testing.assert_close(
        linear.nll(hidden, targets), head(hidden, targets).detach(), check_dtype=False
    )
    weight = head.W
    linear.weight.data.zero_()
    assert torch.equal(head.W, weight)


def test_to_linear_of_the_bound_is_softmax_and_of_mse_nothing():
    head, (hidden, targets) = make("bouchard"), batch()
    nll = F.cross_entropy(hidden @ head.W.T, targets)
    torch.testing.assert_close(head.to_linear().nll(hidden, targets).detach(), nll)
    assert head(hidden, targets) > nll
    with pytest.raises(ValueError, match="'mse' has no probabilities"):
        make("mse").to_linear()


@pytest.mark.parametrize("objective", ["spherical", "taylor", "bouchard"])
def test_starts_at_the_prior_of_a_dense_head(objective):
    head = make(objective, bias=True)
    dense, counts = head.to_linear(), torch.arange(1, VOCAB + 1) ** 3
    match_prior(dense, counts)
    head.load_weight(torch.zeros(VOCAB, HIDDEN), dense.bias)
    p = head.to_linear().log_prob(torch.randn(HIDDEN)).exp()
    torch.testing.assert_close(p.detach(), counts / counts.sum())

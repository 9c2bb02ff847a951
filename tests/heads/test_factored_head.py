"""The factored head as a module: it trains, saves, converts, and what it costs."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from sparse_attn.heads import FactoredSphericalHead, match_prior
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


# Dtypes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_hidden_is_computed_in_float32(dtype):
    head = make(bias=True)
    hidden, targets = batch(dtype=dtype)
    hidden.requires_grad_()
    wide = hidden.detach().float().requires_grad_()
    loss = head(hidden, targets)
    loss.backward()
    norm = head.grad_norm()
    head.zero_grad()
    expected = head(wide, targets)
    expected.backward()
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert torch.equal(norm, head.grad_norm())
    assert hidden.grad.dtype == dtype
    assert torch.equal(hidden.grad, wide.grad.to(dtype))


def test_autocast_changes_nothing():
    plain, (hidden, targets) = make(), batch()
    cast = copy.deepcopy(plain)
    for head, enabled in ((plain, False), (cast, True)):
        with torch.autocast("cpu", enabled=enabled):
            loss = head(hidden, targets)
            loss.backward()
            head.step(0.1)
    assert_untouched(cast, state(plain))


def test_half_precision_models_keep_the_layer_in_float32():
    model = nn.ModuleList([nn.Linear(2, 2), make()]).bfloat16()
    assert not list(model[1].parameters())  # an optimizer of the model has nothing of it to step
    assert model[0].weight.dtype == torch.bfloat16
    assert {tensor.dtype for tensor in model[1].state_dict().values()} == {torch.float32}


def test_in_float64_the_products_are_as_accurate_as_float64():
    head = make(bias=True).double()
    weight = head.W
    torch.testing.assert_close(head.matrix.Q, weight.T @ weight, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(head.matrix.w_bar, weight.sum(0), rtol=1e-14, atol=1e-14)


# In and out


def test_refresh_drops_errors_of_the_products():
    head = make()
    for _ in range(3):
        head(*batch()).backward()
        head.step(0.3)
    weight = head.W
    head.matrix.Q.add_(0.1)
    head.matrix.w_bar.add_(0.1)
    head.matrix.refresh()
    torch.testing.assert_close(head.W, weight)
    torch.testing.assert_close(head.matrix.Q, weight.T @ weight)
    torch.testing.assert_close(head.matrix.w_bar, weight.sum(0))


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


def test_load_weight():
    head = make(bias=True)
    weight, bias = torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB)
    head(*batch()).backward()
    head.step(0.1)
    head.load_weight(weight, bias)
    torch.testing.assert_close(head.W, torch.cat([weight, bias[:, None]], -1))
    torch.testing.assert_close(head.matrix.Q, head.W.T @ head.W)
    torch.testing.assert_close(head.matrix.w_bar, head.W.sum(0))


@pytest.mark.parametrize("objective", ["spherical", "taylor", "bouchard"])
def test_starts_at_the_prior_of_a_dense_head(objective):
    head = make(objective, bias=True)
    dense, counts = head.to_linear(), torch.arange(1, VOCAB + 1) ** 3
    match_prior(dense, counts)
    head.load_weight(torch.zeros(VOCAB, HIDDEN), dense.bias)
    p = head.to_linear().log_prob(torch.randn(HIDDEN)).exp()
    torch.testing.assert_close(p.detach(), counts / counts.sum())


# Cost


def step_cost(vocab):
    """Floating-point operations of matrix products and bytes allocated by one training step."""
    head = FactoredSphericalHead(16, vocab)
    hidden = torch.randn(8, 16, requires_grad=True)
    targets = torch.arange(8)

    def step():
        head(hidden, targets).backward()
        head.step(0.1)

    with FlopCounterMode(display=False) as flops:
        step()
    with torch.profiler.profile(profile_memory=True, acc_events=True) as record:
        step()
    largest = max(e.nbytes() for e in record.profiler.kineto_results.events()
                  if e.name() == "[memory]")  # fmt: skip
    return flops.get_total_flops(), largest


def test_a_step_costs_the_same_for_every_vocabulary():
    small, large = step_cost(50), step_cost(50_000)
    assert small == large
    assert small[0] > 0
    # nothing with a row for each word is ever allocated
    assert large[1] < 50_000

"""The factored head as a module: what it takes and refuses, saves, converts, and what it costs."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from sparse_attn.heads.factored import FactoredSphericalHead
from sparse_attn.heads.prior import match_prior

VOCAB, HIDDEN = 11, 5
LOSSES = ("spherical", "taylor", "mse", "bouchard")


def make(loss="spherical", **options):
    return FactoredSphericalHead(HIDDEN, VOCAB, loss, **options)


def batch(rows=4, dtype=torch.float32):
    return torch.randn(rows, HIDDEN, dtype=dtype), torch.randint(VOCAB, (rows,))


def state(head):
    return {name: tensor.clone() for name, tensor in head.state_dict().items()}


def assert_untouched(head, before):
    assert all(torch.equal(tensor, before[name]) for name, tensor in head.state_dict().items())


# Training


@pytest.mark.parametrize("loss", LOSSES)
def test_learns_with_the_usual_lines(loss):
    encoder = nn.Linear(3, HIDDEN)
    head = make(loss, bias=True)
    model = nn.ModuleList([encoder, head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    assert list(head.parameters()) == []
    inputs, targets = torch.randn(30, 3), torch.randint(VOCAB, (30,))
    losses = []
    for _ in range(60):
        loss_value = head(encoder(inputs).tanh(), targets)
        loss_value.backward()
        head.step(0.3)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss_value.item())
    assert losses[-1] < losses[0]


def test_frozen_hidden_states_train_the_head_alone():
    head, (hidden, targets) = make(), batch()
    first = head(hidden, targets)
    first.backward()
    head.step(0.5)
    assert head(hidden, targets) < first


def test_evaluation_records_nothing():
    head = make()
    with torch.no_grad():
        assert not head(*batch()).requires_grad
    head(*batch())
    with pytest.raises(RuntimeError, match="no gradient is recorded"):
        head.step(0.1)


def test_zero_grad_forgets():
    head = make()
    head(*batch()).backward()
    assert head.grad_norm() > 0
    head.zero_grad()
    with pytest.raises(RuntimeError, match="no gradient is recorded"):
        head.step(0.1)


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


# Bad input


@pytest.mark.parametrize("wrong", [-1, VOCAB, 10**12])
def test_target_outside_the_vocabulary(wrong):
    head = make()
    with pytest.raises(ValueError, match=f"targets: {wrong} is outside the vocabulary"):
        head(torch.randn(2, HIDDEN), torch.tensor([0, wrong]))


@pytest.mark.parametrize(
    ("hidden", "targets", "error", "message"),
    [
        (torch.zeros(2, HIDDEN + 1), torch.zeros(2).long(), ValueError, "hidden: expected shape"),
        (torch.zeros(2, HIDDEN), torch.zeros(3).long(), ValueError, "targets: expected shape"),
        (torch.zeros(2, HIDDEN), torch.zeros(2), TypeError, "targets: expected whole numbers"),
    ],
)
def test_wrong_shapes_and_types(hidden, targets, error, message):
    with pytest.raises(error, match=message):
        make()(hidden, targets)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rows", [3, 9])
def test_hidden_that_is_not_finite_is_refused_and_training_goes_on(loss, poison, rows):
    head, (hidden, targets) = make(loss), batch(rows)
    before = state(head)
    spoiled = hidden.clone()
    spoiled[1, 2] = poison
    head(spoiled, targets).backward()
    with pytest.raises(ValueError, match=r"hidden: expected finite values.*weights are as before"):
        head.step(0.1)
    assert_untouched(head, before)
    head(hidden, targets).backward()
    head.step(0.1)
    assert head.W.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": -0.1}, "lr=-0.1"),
        ({"lr": math.nan}, "lr=nan"),
        ({"lr": math.inf}, "lr=inf"),
        ({"lr": 0.1, "max_norm": 0.0}, "max_norm=0.0"),
        ({"lr": 0.1, "weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"lr": 0.1, "weight_decay": 10.0}, "below 1/lr = 10"),
    ],
)
def test_arguments_of_step_out_of_range(arguments, message):
    head = make()
    head(*batch()).backward()
    before = state(head)
    with pytest.raises(ValueError, match=message):
        head.step(**arguments)
    assert_untouched(head, before)
    head.step(0.1)  # the gradient is still there


def test_step_and_norm_before_backward():
    head = make()
    for call in (lambda: head.step(0.1), head.grad_norm):
        with pytest.raises(RuntimeError, match=r"call backward\(\) on the loss of this head"):
            call()


def test_backward_after_the_weights_changed():
    head = make()
    early = head(*batch())
    head(*batch()).backward()
    head.step(0.1)
    with pytest.raises(RuntimeError, match="changed since the forward"):
        early.backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 0.0}, "eps=0.0: expected a finite number above 0"),
        ({"eps": -1.0}, "eps=-1.0"),
        ({"eps": math.nan}, "eps=nan"),
        ({"loss": "softmax"}, "loss='softmax' is unknown; expected one of spherical, taylor"),
        ({"vocab": 0}, "vocab=0: expected at least 1"),
        ({"hidden": 0}, "hidden=0: expected at least 1"),
    ],
)
def test_arguments_of_the_head_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        FactoredSphericalHead(**{"hidden": HIDDEN, "vocab": VOCAB, **options})


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


@pytest.mark.parametrize("loss", ["spherical", "taylor"])
@pytest.mark.parametrize("bias", [False, True])
def test_to_linear_has_the_loss_as_its_likelihood(loss, bias):
    head = make(loss, eps=0.4, bias=bias)
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
    with pytest.raises(ValueError, match="bias: expected a tensor"):
        head.load_weight(weight)
    with pytest.raises(ValueError, match="bias: expected None"):
        make().load_weight(weight, bias)
    with pytest.raises(ValueError, match=r"weight: expected shape \(11, 5\), got \(11, 4\)"):
        make().load_weight(weight[:, 1:])


@pytest.mark.parametrize("loss", ["spherical", "taylor", "bouchard"])
def test_starts_at_the_prior_of_a_dense_head(loss):
    head = make(loss, bias=True)
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
    with torch.profiler.profile(profile_memory=True) as record:
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

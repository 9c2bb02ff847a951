"""Which gradients the factored head accumulates for its step, and when it forgets them."""

import copy
import gc
import math
import weakref

import pytest
import torch
from torch import nn

from tests.heads.small_factored import (
    HIDDEN,
    OBJECTIVES,
    VOCAB,
    assert_untouched,
    batch,
    make,
    state,
)


def backward(head):
    head(*batch()).backward()


UNRECORDED = {
    "no call": lambda head: None,
    "no backward": lambda head: head(*batch()),
    "zero_grad": lambda head: (backward(head), head.zero_grad()),
    "load_weight": lambda head: (backward(head), head.load_weight(make().W)),
    "load_state_dict": lambda head: (backward(head), head.load_state_dict(make().state_dict())),
    "load_state_dict of a model": lambda head: (
        backward(head),
        nn.ModuleList([head]).load_state_dict(nn.ModuleList([make()]).state_dict()),
    ),
}


@pytest.mark.parametrize("way", UNRECORDED.values(), ids=UNRECORDED)
def test_no_step_and_no_norm_without_a_gradient(way):
    head = make()
    way(head)
    for call in (lambda: head.step(0.1), head.grad_norm):
        with pytest.raises(RuntimeError, match=r"is recorded; call backward\(\) on this head's"):
            call()


@pytest.mark.parametrize(
    "change",
    [
        lambda head: (backward(head), head.step(0.1)),
        lambda head: head.load_state_dict(make().state_dict()),
    ],
    ids=["step", "load"],
)
def test_backward_after_the_weights_changed(change):
    head = make()
    early = head(*batch())
    change(head)
    with pytest.raises(RuntimeError, match="changed since the forward"):
        early.backward()


# Only while training


def test_evaluation_gives_the_gradient_of_hidden_only():
    head, (hidden, targets) = make(), batch()
    rows = hidden.clone().requires_grad_()
    head(rows, targets).backward()
    head.zero_grad()
    head.eval()
    assert not head(hidden, targets).requires_grad
    for _ in range(3):
        hidden.requires_grad_().grad = None
        head(hidden, targets).backward()
        assert torch.equal(hidden.grad, rows.grad)
    head.train()
    with pytest.raises(RuntimeError, match="no gradient is recorded"):
        head.step(0.1)


# Copies and changes of the weights


def test_a_copy_between_backward_and_step():
    encoder, head = nn.Linear(3, HIDDEN), make()
    head(encoder(torch.randn(4, 3)), torch.randint(VOCAB, (4,))).backward()
    other = copy.deepcopy(head)
    assert torch.equal(head.step(0.3), other.step(0.3))
    assert torch.equal(head.W, other.W)


def test_the_graph_of_the_encoder_is_not_kept():
    class Hook:
        def __call__(self, grad):
            return None

    head, hook = make(), Hook()
    hidden = nn.Linear(3, HIDDEN)(torch.randn(4, 3))
    hidden.register_hook(hook)  # lives as long as the node of the graph
    head(hidden, torch.randint(VOCAB, (4,))).backward()
    alive = weakref.ref(hook)
    del hidden, hook
    gc.collect()
    assert alive() is None
    assert head.step(0.1) > 0


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda matrix: matrix.assign(torch.ones(VOCAB, HIDDEN)),
        lambda matrix: matrix.scale(0.5),
        lambda matrix: matrix.load_state_dict(make().matrix.state_dict()),
    ],
    ids=["assign", "scale", "load"],
)
def test_a_gradient_of_earlier_weights_is_refused(change, again):
    head = make()
    head(*batch()).backward()
    change(head.matrix)
    if again:
        head(*batch()).backward()
    before = head.W
    for call in (lambda: head.step(0.1), head.grad_norm):
        with pytest.raises(RuntimeError, match=r"changed since backward.*zero_grad"):
            call()
    assert torch.equal(head.W, before)
    head.zero_grad()
    head(*batch()).backward()
    assert head.step(0.1) > 0


# Refused, and training goes on as before


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("rows", [3, 9])
def test_hidden_that_is_not_finite_is_refused_and_training_goes_on(objective, poison, rows):
    head, (hidden, targets) = make(objective), batch(rows)
    before = state(head)
    spoiled = hidden.clone()
    spoiled[1, 2] = poison
    head(spoiled, targets).backward()
    with pytest.raises(ValueError, match=r"hidden: expected finite values.*weights are unchanged"):
        head.step(0.1)
    assert_untouched(head, before)
    head(hidden, targets).backward()
    head.step(0.1)
    assert head.W.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": math.nan}, "lr=nan"),
        ({"lr": 0.1, "max_norm": 0.0}, "max_norm=0.0"),
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

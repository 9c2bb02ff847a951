"""nll: exact in value and gradient, whatever the chunk, the reduction and the precision."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from tests.heads.plain import (
    BY_NAME,
    CASES,
    CHECK,
    IGNORED,
    VOCAB,
    assert_same,
    dense_log_prob,
    dense_nll,
    gradients,
    linear_head,
    random_hidden,
    random_targets,
)

cases = pytest.mark.parametrize("case", CASES, ids=str)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
some_cases = pytest.mark.parametrize(
    "case", [BY_NAME[name] for name in ("softmax", "sigsoftmax-bias", "plif")], ids=str
)


def weighted_sum(losses):
    """A scalar whose gradient differs from token to token where losses are one a token."""
    weights = torch.arange(1.0, 1 + losses.numel(), dtype=losses.dtype).reshape(losses.shape)
    return (losses * weights).sum()


# Values and gradients


@cases
@reductions
@pytest.mark.parametrize("shape", [(), (7,), (2, 4)], ids=str)
def test_value_and_gradients(case, reduction, shape):
    head, hidden = linear_head(case), random_hidden(*shape)
    targets = random_targets(*shape, ignored=shape != ())
    inputs = (hidden, *head.parameters())
    found = head.nll(hidden, targets, reduction=reduction, chunk=3)
    expected = dense_nll(dense_log_prob(case, head, hidden), targets, reduction)
    assert found.shape == expected.shape
    assert_same(found, expected)
    found, expected = weighted_sum(found), weighted_sum(expected)
    assert_same(gradients(found, *inputs), gradients(expected, *inputs))


@some_cases
@reductions
def test_without_bias(case, reduction):
    head, hidden, targets = linear_head(case, bias=False), random_hidden(7), random_targets(7)
    inputs = (hidden, *head.parameters())
    found = head.nll(hidden, targets, reduction=reduction, chunk=3)
    expected = dense_nll(dense_log_prob(case, head, hidden), targets, reduction)
    assert_same(found, expected)
    found, expected = weighted_sum(found), weighted_sum(expected)
    assert_same(gradients(found, *inputs), gradients(expected, *inputs))


@cases
@reductions
def test_gradcheck(case, reduction):
    head, targets = linear_head(case), random_targets(5)
    names = [name for name, _ in head.named_parameters()]

    def nll(hidden, *values):
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(
            Nll(head), {f"head.{name}": value for name, value in parameters.items()},
            (hidden, targets, reduction),
        )  # fmt: skip

    values = [p.detach().clone().requires_grad_() for p in head.parameters()]
    assert gradcheck(nll, (random_hidden(5), *values), **CHECK)


class Nll(nn.Module):
    """A head whose forward is its nll, for torch.func.functional_call."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, hidden, targets, reduction):
        return self.head.nll(hidden, targets, reduction=reduction, chunk=2)


@some_cases
@reductions
@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_chunk_changes_nothing(case, reduction, chunk):
    head, hidden, targets = linear_head(case), random_hidden(7), random_targets(7)
    inputs = (hidden, *head.parameters())
    found = head.nll(hidden, targets, reduction=reduction, chunk=chunk)
    expected = head.nll(hidden, targets, reduction=reduction)
    assert_same(found, expected)
    assert_same(gradients(weighted_sum(found), *inputs), gradients(weighted_sum(expected), *inputs))


def test_softmax_is_cross_entropy():
    head, hidden, targets = linear_head(BY_NAME["softmax"]), random_hidden(9), random_targets(9)
    expected = nn.functional.cross_entropy(head.scores(hidden), targets)
    assert_same(head.nll(hidden, targets), expected)


@cases
def test_loss_of_a_mapping_without_zeros_is_nll(case):
    """spherical-softmax too: it has zeros at eps = 0 only."""
    head, hidden, targets = linear_head(case), random_hidden(2, 4), random_targets(2, 4)
    assert_same(head.loss(hidden, targets, chunk=3), head.nll(hidden, targets))


# Targets that are ignored


@reductions
def test_other_ignore_index(reduction):
    """One that is a word of the vocabulary, as a padding token is."""
    case = BY_NAME["sigsoftmax"]
    head, hidden = linear_head(case), random_hidden(12)
    targets = random_targets(12, ignored=False) % 3
    found = head.nll(hidden, targets, ignore_index=0, reduction=reduction)
    log_p = dense_log_prob(case, head, hidden)
    assert_same(found, dense_nll(log_p, targets, reduction, ignore_index=0))


@pytest.mark.parametrize("shape", [(4,), (2, 3)], ids=str)
def test_all_targets_ignored(shape):
    """As torch's cross_entropy: mean of nothing is nan, sum is 0, and nothing has a gradient."""
    head, hidden = linear_head(BY_NAME["sigsoftmax"]), random_hidden(*shape)
    targets = torch.full(shape, IGNORED)
    assert head.nll(hidden, targets).isnan()
    assert torch.equal(head.nll(hidden, targets, reduction="none"), torch.zeros(shape).double())
    total = head.nll(hidden, targets, reduction="sum")
    assert total.item() == 0
    for gradient in gradients(total, hidden, *head.parameters()):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_empty_batch(shape):
    head, hidden = linear_head(BY_NAME["plif"]), random_hidden(*shape)
    targets = torch.zeros(shape, dtype=torch.long)
    assert head.log_prob(hidden).shape == (*shape, VOCAB)
    assert head.nll(hidden, targets).isnan()
    assert head.nll(hidden, targets, reduction="none").shape == shape
    total = head.nll(hidden, targets, reduction="sum")
    assert total.item() == 0
    total.backward()
    for tensor in (hidden, *head.parameters()):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_ignored_tokens_may_hold_anything():
    """A padded position with a NaN hidden state neither counts nor spoils a gradient."""
    head, hidden = linear_head(BY_NAME["sigsoftmax"]), random_hidden(6)
    targets = torch.tensor([1, IGNORED, 2, 3, IGNORED, 0])
    poisoned = hidden.detach().clone()
    poisoned[targets == IGNORED] = float("nan")
    poisoned.requires_grad_()
    found, expected = head.nll(poisoned, targets, chunk=2), head.nll(hidden, targets)
    assert_same(found, expected)
    found, expected = (
        gradients(found, poisoned, *head.parameters()),
        gradients(expected, hidden, *head.parameters()),
    )
    assert_same(found, expected)


# Autograd


@some_cases
@reductions
def test_backward_three_times(case, reduction):
    """What is handed out is the caller's, to be added to or cleared in place."""
    head, hidden, targets = linear_head(case), random_hidden(5), random_targets(5)
    inputs = (hidden, *head.parameters())
    loss = weighted_sum(head.nll(hidden, targets, reduction=reduction, chunk=2))
    once = [gradient.clone() for gradient in gradients(loss, *inputs)]
    loss.backward(retain_graph=True)
    for tensor in inputs:
        tensor.grad.zero_()
    loss.backward(retain_graph=True)
    loss.backward()
    assert_same([tensor.grad for tensor in inputs], [2 * gradient for gradient in once])


@some_cases
def test_scaled_loss_and_gradient_accumulation(case):
    """As a GradScaler and a loop over micro-batches do."""
    head, hidden, targets = linear_head(case), random_hidden(8), random_targets(8, ignored=False)
    whole = gradients(3 * head.nll(hidden, targets, chunk=3), *head.parameters())
    for rows in (slice(0, 4), slice(4, 8)):
        (3 * head.nll(hidden[rows], targets[rows], chunk=3) / 2).backward()
    assert_same([p.grad for p in head.parameters()], whole)


@some_cases
def test_one_head_called_twice_in_one_graph(case):
    head, first, second = linear_head(case), random_hidden(4), random_hidden(6)
    one, two = random_targets(4, ignored=False), random_targets(6, ignored=False)
    inputs = (first, second, *head.parameters())
    found = head.nll(first, one, chunk=2) * head.nll(second, two, chunk=4)
    expected = dense_nll(dense_log_prob(case, head, first), one) * dense_nll(
        dense_log_prob(case, head, second), two
    )
    assert_same(gradients(found, *inputs), gradients(expected, *inputs))


@pytest.mark.parametrize("case", [BY_NAME["sigsoftmax-bias"], BY_NAME["plif"]], ids=str)
@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias", "mapping", "all but hidden"])
def test_frozen_inputs(case, frozen):
    """What needs no gradient gets none, and the rest get the right one."""
    head, hidden, targets = linear_head(case), random_hidden(5), random_targets(5)
    for name, tensor in [("hidden", hidden), *head.named_parameters()]:
        chosen = name != "hidden" if frozen == "all but hidden" else name.startswith(frozen)
        tensor.requires_grad_(not chosen)
    expected = dense_nll(dense_log_prob(case, head, hidden), targets)
    expected.backward()
    tensors = (hidden, *head.parameters())
    wanted = [tensor.grad for tensor in tensors]
    assert any(gradient is None for gradient in wanted)
    for tensor in tensors:
        tensor.grad = None
    head.nll(hidden, targets, chunk=2).backward()
    for tensor, gradient in zip(tensors, wanted, strict=True):
        if gradient is None:
            assert tensor.grad is None
        else:
            assert_same(tensor.grad, gradient)


def test_all_frozen_has_no_graph():
    head = linear_head(BY_NAME["sigsoftmax"]).requires_grad_(False)
    assert not head.nll(random_hidden(5, grad=False), random_targets(5)).requires_grad


@cases
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=lambda c: c.__name__)
def test_without_gradients(case, context):
    head, hidden, targets = linear_head(case), random_hidden(7), random_targets(7)
    with context():
        found = head.nll(hidden, targets, chunk=3)
    assert not found.requires_grad
    assert_same(found.clone(), dense_nll(dense_log_prob(case, head, hidden), targets).detach())


def test_second_derivative_is_right_or_refused():
    """Never silently a constant."""
    case = BY_NAME["sigsoftmax"]
    head, hidden, targets = linear_head(case), random_hidden(4), random_targets(4, ignored=False)
    dense = dense_nll(dense_log_prob(case, head, hidden), targets)
    (slope,) = torch.autograd.grad(dense, hidden, create_graph=True)
    expected = gradients(slope.pow(2).sum(), hidden)
    try:
        (slope,) = torch.autograd.grad(head.nll(hidden, targets), hidden, create_graph=True)
        found = gradients(slope.pow(2).sum(), hidden)
    except RuntimeError:
        return
    assert_same(found, expected)


def test_strided_inputs():
    """A transposed batch, a slice of the time steps, targets shifted by one."""
    case = BY_NAME["sigsoftmax"]
    head, states = linear_head(case), random_hidden(6, 3)
    words = random_targets(3, 6)
    hidden, targets = states.transpose(0, 1)[:, :-1], words[:, 1:]
    found = head.nll(hidden, targets, chunk=4)
    expected = dense_nll(dense_log_prob(case, head, hidden), targets)
    assert_same(found, expected)
    inputs = (states, *head.parameters())
    assert_same(gradients(found, *inputs), gradients(expected, *inputs))


def test_inputs_are_left_as_they_were():
    head, hidden, targets = linear_head(BY_NAME["plif"]), random_hidden(5), random_targets(5)
    tensors = (hidden, targets, *head.parameters())
    before = [tensor.detach().clone() for tensor in tensors]
    head.nll(hidden, targets, chunk=2).backward()
    assert_same([tensor.detach() for tensor in tensors], before, rtol=0, atol=0)

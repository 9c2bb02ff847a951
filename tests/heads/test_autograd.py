"""Losses of heads in autograd: several backward passes, shared graphs, frozen parts, no graph."""

import pytest
import torch

from sparse_attn.heads import LinearHead
from tests.heads.plain import (
    BY_NAME,
    FEW_PROBLEMS,
    Problem,
    assert_same,
    gradients,
    linear_head,
    mixture_head,
    random_hidden,
    random_targets,
    weighted_sum,
)

few_problems = pytest.mark.parametrize("problem", FEW_PROBLEMS, ids=str)
FROZEN = {linear_head: ("weight", "bias"), mixture_head: ("weight", "latent", "prior")}


@few_problems
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_backward_three_times(problem, reduction):
    """What is handed out is the caller's, to be added to or cleared in place."""
    head, hidden, targets = problem.head(), random_hidden(5), random_targets(5)
    inputs = (hidden, *head.parameters())
    loss = weighted_sum(head.nll(hidden, targets, reduction=reduction, chunk=2))
    once = [gradient.clone() for gradient in gradients(loss, *inputs)]
    loss.backward(retain_graph=True)
    for tensor in inputs:
        tensor.grad.zero_()
    loss.backward(retain_graph=True)
    loss.backward()
    assert_same([tensor.grad for tensor in inputs], [2 * gradient for gradient in once])


@few_problems
def test_one_head_called_twice_in_one_graph(problem):
    """Each loss scales the gradient of the other, as a GradScaler would."""
    head, first, second = problem.head(), random_hidden(4), random_hidden(6)
    one, two = random_targets(4, ignored=False), random_targets(6, ignored=False)
    inputs = (first, second, *head.parameters())
    found = head.nll(first, one, chunk=2) * head.nll(second, two, chunk=4)
    expected = problem.loss(head, first, one) * problem.loss(head, second, two)
    assert_same(gradients(found, *inputs), gradients(expected, *inputs))


@pytest.mark.parametrize(
    ("problem", "frozen"),
    [
        (Problem(make, BY_NAME[name]), frozen)
        for make, parts in FROZEN.items()
        for name in ("sigsoftmax-bias", "plif")
        for frozen in ("hidden", "mapping", "all but hidden", *parts)
    ],
    ids=str,
)
def test_frozen_inputs(problem, frozen):
    """What needs no gradient gets none, and the rest get the right one."""
    head, hidden, targets = problem.head(), random_hidden(5), random_targets(5)
    for name, tensor in [("hidden", hidden), *head.named_parameters()]:
        chosen = name != "hidden" if frozen == "all but hidden" else name.startswith(frozen)
        tensor.requires_grad_(not chosen)
    problem.loss(head, hidden, targets).backward()
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


@few_problems
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=lambda c: c.__name__)
def test_without_gradients(problem, context):
    head, hidden, targets = problem.head(), random_hidden(7), random_targets(7)
    with context():
        found = head.nll(hidden, targets, chunk=3)
    assert not found.requires_grad
    assert_same(found.clone(), problem.loss(head, hidden, targets).detach())
    frozen = head.requires_grad_(False).nll(hidden.detach(), targets)
    assert not frozen.requires_grad


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_derivative_is_refused(reduction):
    head, hidden = LinearHead(4, 7), torch.randn(3, 4, requires_grad=True)
    loss = head.nll(hidden, torch.tensor([0, 1, 2]), reduction=reduction).sum()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, hidden, create_graph=True)

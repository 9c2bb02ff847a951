"""Heads in half precision and under autocast, beside the same rounded numbers in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sparse_attn.heads import LinearHead
from tests.heads.plain import (
    BY_NAME,
    Problem,
    adaptive_head,
    gradients,
    linear_head,
    mixture_head,
    random_hidden,
    random_targets,
    randomise,
)

from .small_factored import batch, make, state


def large_problem(tokens=64, vocab=300, hidden=32):
    head = LinearHead(hidden, vocab, "sigsoftmax")
    randomise(head, 0.3)
    return head, torch.randn(tokens, hidden), torch.randint(vocab, (tokens,))


def in_float64(head, hidden, targets):
    """Loss and gradients of the same rounded numbers in float64."""
    twin, hidden = copy.deepcopy(head).double(), hidden.detach().double().requires_grad_()
    loss = Problem(linear_head, BY_NAME["sigsoftmax"]).loss(twin, hidden, targets)
    return loss, gradients(loss, hidden, *twin.parameters())


def assert_near(found, expected, error):
    """Within `error` of the size of the whole tensor."""
    distance = (found.double() - expected).norm() / expected.norm()
    assert distance < error, distance


@pytest.mark.parametrize(
    ("dtype", "autocast", "error"),
    [
        (torch.float32, False, 1e-5),
        (torch.float16, False, 4e-3),
        (torch.bfloat16, False, 3e-2),
        (torch.float32, True, 3e-2),
    ],
)
def test_half_precision_and_autocast(dtype, autocast, error):
    """Within a few roundings (2^-24, 2^-11, 2^-8) of scores of size 5.

    Under autocast scores are in bfloat16; gradients have the dtype of the parameters.
    """
    head, hidden, targets = large_problem()
    head, hidden = head.to(dtype), hidden.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = head.nll(hidden, targets, chunk=16)
    expected, wanted = in_float64(head, hidden, targets)
    assert loss.dtype == torch.float32
    assert_near(loss, expected, error)
    inputs = (hidden, *head.parameters())
    for tensor, gradient, exact in zip(inputs, gradients(loss, *inputs), wanted, strict=True):
        assert gradient.dtype == tensor.dtype
        assert_near(gradient, exact, error)


def test_many_chunks_of_bfloat16_add_up():
    """The gradient of the weight is summed over chunks in more than bfloat16's eight bits."""
    head, hidden, targets = large_problem(tokens=400, vocab=20)
    head, hidden = head.to(torch.bfloat16), hidden.to(torch.bfloat16)
    (gradient,) = gradients(head.nll(hidden, targets, chunk=1), head.weight)
    _, (_, expected, *_) = in_float64(head, hidden, targets)
    assert_near(gradient, expected, 1e-2)


def test_long_sums_in_float16_do_not_overflow():
    """4096 tokens of 20 nats and more: the sum is beyond 65504, the mean is not."""
    head = LinearHead(1, 2, bias=False).half()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[20.0], [0.0]]))
    hidden, targets = torch.ones(4096, 1, dtype=torch.float16), torch.ones(4096, dtype=torch.long)
    assert head.nll(hidden, targets, chunk=64).item() == pytest.approx(20.0, rel=1e-3)


@pytest.mark.parametrize("make", [mixture_head, adaptive_head])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None], ids=str)
def test_mixture_and_adaptive(make, dtype):
    """Without a dtype under autocast; scores of size 3 in bfloat16 are good to 3 / 256."""
    problem, rounded = Problem(make, BY_NAME["sigsoftmax"]), dtype or torch.float32
    head, hidden = problem.head().to(rounded), random_hidden(64).to(rounded)
    targets = random_targets(64, words=head.vocab)
    exact = problem.loss(copy.deepcopy(head).double(), hidden.double(), targets)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is None):
        loss = head.nll(hidden, targets, chunk=16)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), abs=0.03)
    assert all(gradient.isfinite().all() for gradient in gradients(loss, *head.parameters()))


def test_scaled_gradients_in_float16_do_not_underflow():
    """A GradScaler's 2^16 brings small gradients into float16's range: before they are rounded."""
    head = LinearHead(8, 8, bias=False)
    with torch.no_grad():
        head.weight.copy_(10 * torch.eye(8))
    targets = torch.arange(2048) % 8
    hidden = F.one_hot(targets, 8).half().requires_grad_()
    exact = hidden.detach().double().requires_grad_()
    expected = F.cross_entropy(10 * exact, targets)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = head.nll(hidden, targets)
    (scaled,), (wanted,) = gradients(2**16 * loss, hidden), gradients(2**16 * expected, exact)
    assert_near(scaled, wanted, 4e-3)


# The factored head, whose state stays in float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None], ids=str)
def test_the_factored_head_computes_in_float32(dtype):
    """Hidden states of half precision, or autocast, leave loss, gradient and step as they are."""
    plain = make(bias=True)
    cast = copy.deepcopy(plain)
    hidden, targets = batch(dtype=dtype or torch.float32)
    losses, rows = [], []
    for head, enabled in ((plain, False), (cast, dtype is None)):
        given = hidden if head is cast else hidden.float()
        rows.append(given.clone().requires_grad_())
        with torch.autocast("cpu", enabled=enabled):
            losses.append(head(rows[-1], targets))
            losses[-1].backward()
            head.step(0.1)
    assert losses[1].dtype == torch.float32
    assert torch.equal(*losses)
    assert rows[1].grad.dtype == hidden.dtype
    assert torch.equal(rows[1].grad, rows[0].grad.to(hidden.dtype))
    for name, tensor in state(plain).items():
        assert torch.equal(tensor, state(cast)[name]), name


def test_half_precision_models_keep_the_factored_head_in_float32():
    model = nn.ModuleList([nn.Linear(2, 2), make()]).bfloat16()
    assert not list(model[1].parameters())  # an optimizer of the model has nothing of it to step
    assert model[0].weight.dtype == torch.bfloat16
    assert {tensor.dtype for tensor in model[1].state_dict().values()} == {torch.float32}
    exact = make(bias=True).double()
    weight = exact.W
    torch.testing.assert_close(exact.matrix.Q, weight.T @ weight, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(exact.matrix.w_bar, weight.sum(0), rtol=1e-14, atol=1e-14)

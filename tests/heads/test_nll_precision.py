"""nll and its gradients in half precision and under autocast, beside those in float64."""

import copy

import pytest
import torch
from torch.nn import functional as F

from sparse_attn.heads import LinearHead
from tests.heads.plain import (
    BY_NAME,
    adaptive_head,
    dense_log_prob,
    dense_nll,
    gradients,
    mixture_head,
    random_hidden,
    random_targets,
    randomise,
)


def large_problem(tokens=64, vocab=300, hidden=32):
    head = LinearHead(hidden, vocab, "sigsoftmax")
    randomise(head, 0.3)
    return head, torch.randn(tokens, hidden), torch.randint(vocab, (tokens,))


def float64_twin(head, hidden, targets):
    """Loss and gradients of the same rounded numbers in float64."""
    twin = LinearHead(head.hidden, head.vocab, "sigsoftmax").double()
    twin.load_state_dict(head.state_dict())
    hidden = hidden.detach().double().requires_grad_()
    loss = dense_nll(dense_log_prob(BY_NAME["sigsoftmax"], twin, hidden), targets)
    return loss, gradients(loss, hidden, *twin.parameters())


def assert_near(found, expected, error):
    """Within `error` of the size of the whole tensor."""
    distance = (found.double() - expected).norm() / expected.norm()
    assert distance < error, distance


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)]
)
def test_half_precision(dtype, error):
    """Within a few roundings (2^-24, 2^-11, 2^-8) of scores of size 5."""
    head, hidden, targets = large_problem()
    head, hidden = head.to(dtype), hidden.to(dtype).requires_grad_()
    loss = head.nll(hidden, targets, chunk=16)
    expected, expected_gradients = float64_twin(head, hidden, targets)
    assert_near(loss, expected, error)
    inputs = (hidden, *head.parameters())
    for tensor, gradient, wanted in zip(
        inputs, gradients(loss, *inputs), expected_gradients, strict=True
    ):
        assert gradient.dtype == tensor.dtype
        assert_near(gradient, wanted, error)


def test_many_chunks_of_bfloat16_add_up():
    """The gradient of the weight is summed over chunks in more than bfloat16's eight bits."""
    head, hidden, targets = large_problem(tokens=400, vocab=20)
    head, hidden = head.to(torch.bfloat16), hidden.to(torch.bfloat16)
    (gradient,) = gradients(head.nll(hidden, targets, chunk=1), head.weight)
    _, (_, expected, *_) = float64_twin(head, hidden, targets)
    assert_near(gradient, expected, 1e-2)


def test_long_sums_in_float16_do_not_overflow():
    """4096 tokens of 20 nats and more: the sum is beyond 65504, the mean is not."""
    head = LinearHead(1, 2, bias=False).half()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[20.0], [0.0]]))
    hidden, targets = torch.ones(4096, 1, dtype=torch.float16), torch.ones(4096, dtype=torch.long)
    assert head.nll(hidden, targets, chunk=64).item() == pytest.approx(20.0, rel=1e-3)


def test_autocast():
    """Scores in bfloat16, everything else in float32; gradients in the dtype of the parameters."""
    head, hidden, targets = large_problem()
    hidden.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head.nll(hidden, targets, chunk=16)
    expected, expected_gradients = float64_twin(head, hidden, targets)
    assert loss.dtype == torch.float32
    assert_near(loss, expected, 3e-2)
    inputs = (hidden, *head.parameters())
    for gradient, wanted in zip(gradients(loss, *inputs), expected_gradients, strict=True):
        assert gradient.dtype == torch.float32
        assert_near(gradient, wanted, 3e-2)


@pytest.mark.parametrize("make", [mixture_head, adaptive_head])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None], ids=str)
def test_mixture_and_adaptive(make, dtype):
    """Without a dtype under autocast; scores of size 3 in bfloat16 are good to 3 / 256."""
    case, rounded = BY_NAME["sigsoftmax"], dtype or torch.float32
    head, hidden = make(case).to(rounded), random_hidden(64).to(rounded)
    targets = random_targets(64, words=head.vocab)
    exact = dense_log_prob(case, copy.deepcopy(head).double(), hidden.double())
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is None):
        loss = head.nll(hidden, targets, chunk=16)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(dense_nll(exact, targets).item(), abs=0.03)
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
    for scaled, wanted in zip(
        gradients(2**16 * loss, hidden), gradients(2**16 * expected, exact), strict=True
    ):
        assert_near(scaled, wanted, 4e-3)

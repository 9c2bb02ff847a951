"""log_prob and nll of every head: exact in value and gradient, whatever chunk and reduction."""

import math

import pytest
import torch

from sparse_attn.heads import LinearHead, MixtureHead
from tests.heads.plain import (
    BY_NAME,
    CASES,
    FEW_PROBLEMS,
    IGNORED,
    PROBLEMS,
    Problem,
    assert_same,
    dense_log_prob,
    dense_nll,
    gradients,
    linear_head,
    mixture_head,
    random_hidden,
    random_targets,
    weighted_sum,
)

cases = pytest.mark.parametrize("case", CASES, ids=str)
problems = pytest.mark.parametrize("problem", PROBLEMS, ids=str)
few_problems = pytest.mark.parametrize("problem", FEW_PROBLEMS, ids=str)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
biases = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])


POINTWISE = list(dict.fromkeys(case.name for case in CASES if case.name != "weighted-softmax"))
FROZEN = {linear_head: ("weight", "bias"), mixture_head: ("weight", "latent", "prior")}


def assert_exact(problem, head, hidden, targets, reduction="mean", **options):
    """Value and all gradients are those of the head written out."""
    inputs = (hidden, *head.parameters())
    found = head.nll(hidden, targets, reduction=reduction, **options)
    expected = dense_nll(problem.log_prob(head, hidden), targets, reduction)
    assert_same(found, expected)
    found, expected = weighted_sum(found), weighted_sum(expected)
    assert_same(gradients(found, *inputs), gradients(expected, *inputs))


# Values and gradients


@problems
@biases
@pytest.mark.parametrize("shape", [(), (4,), (2, 1, 3)], ids=str)
def test_log_prob(problem, bias, shape):
    head, hidden = problem.head(bias=bias), random_hidden(*shape)
    log_p = head.log_prob(hidden)
    assert log_p.shape == (*shape, head.vocab)
    assert_same(log_p, problem.log_prob(head, hidden))
    assert torch.equal(head(hidden), log_p)


@problems
@reductions
@pytest.mark.parametrize("shape", [(), (7,), (2, 4)], ids=str)
def test_value_and_gradients(problem, reduction, shape):
    head, hidden = problem.head(), random_hidden(*shape)
    targets = random_targets(*shape, ignored=shape != (), words=head.vocab)
    assert_exact(problem, head, hidden, targets, reduction, chunk=5)


@few_problems
@reductions
@pytest.mark.parametrize(
    ("chunk", "bias"), [(1, True), (2, True), (3, True), (3, False), (7, True), (1000, True)]
)
def test_chunk_changes_nothing(problem, reduction, chunk, bias):
    """Also one that is smaller than the number of components, or no multiple of it."""
    head = problem.head(bias=bias)
    targets = random_targets(7, words=head.vocab)
    assert_exact(problem, head, random_hidden(7), targets, reduction, chunk=chunk)


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


@few_problems
@pytest.mark.parametrize("shape", [(4,), (2, 3), (0,), (0, 3), (3, 0)], ids=str)
def test_nothing_to_predict(problem, shape):
    """As torch's cross_entropy: the mean of nothing is NaN, the sum 0, gradients 0."""
    head, hidden = problem.head(), random_hidden(*shape)
    targets = torch.full(shape, IGNORED)
    assert head.log_prob(hidden).shape == (*shape, head.vocab)
    assert head.nll(hidden, targets).isnan()
    assert torch.equal(head.nll(hidden, targets, reduction="none"), torch.zeros(shape).double())
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


def test_ignored_tokens_may_hold_anything_under_dropout():
    head = MixtureHead(4, 7, components=3, dropout=0.5)
    hidden = torch.randn(2, 3, 4)
    hidden[0, 1] = torch.nan
    head.nll(hidden, torch.tensor([[1, IGNORED, 3], [4, 5, 6]])).backward()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())


# What is not finite


@few_problems
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_nan_stays_in_its_token(problem, bad, chunk):
    """Its loss and the gradient of its hidden state, and no other, also within a chunk."""
    head, hidden = problem.head(), random_hidden(6, grad=False)
    targets = random_targets(6, ignored=False)
    poisoned, others = hidden.clone(), torch.arange(6) != 3
    poisoned[3, 1] = bad
    clean, found = (
        head.nll(h.requires_grad_(), targets, reduction="none", chunk=chunk)
        for h in (hidden, poisoned)
    )
    assert_same(found[others], clean[others])
    if math.isnan(bad):
        assert found[3].isnan()
        assert head.nll(poisoned, targets, chunk=chunk).isnan()
        (expected,), (gradient,) = gradients(clean.sum(), hidden), gradients(found.sum(), poisoned)
        assert gradient[3].isnan().any()
        assert_same(gradient[others], expected[others])


@pytest.mark.filterwarnings("ignore:.*of the scores lie outside")
@pytest.mark.parametrize("name", POINTWISE)
def test_an_overflow_is_not_hidden(name):
    head = LinearHead(1, 3, name, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1e38], [0.5], [-0.5]]))
    losses = head.nll(torch.tensor([[1e10], [1e-30]]), torch.tensor([1, 1]), reduction="none")
    assert losses[0].isnan()
    assert losses[1].isfinite()


@pytest.mark.parametrize("name", POINTWISE)
def test_a_bias_of_minus_infinity_masks_a_word(name):
    head = LinearHead(4, 7, name).double()
    with torch.no_grad():
        head.bias[2] = -torch.inf
    hidden, targets = torch.randn(5, 4, dtype=torch.double), torch.tensor([0, 1, 3, 4, 6])
    plain = -head.log_prob(hidden).gather(-1, targets[:, None]).mean()
    loss = head.nll(hidden, targets)
    assert_same(loss, plain, rtol=1e-6, atol=1e-9)
    parameters = (head.weight, *head.mapping.parameters())
    assert_same(gradients(loss, *parameters), gradients(plain, *parameters), rtol=1e-5, atol=1e-8)


# Autograd


@few_problems
@reductions
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
def test_scaled_loss_and_gradient_accumulation(problem):
    """As a GradScaler and a loop over micro-batches do."""
    head, hidden, targets = problem.head(), random_hidden(8), random_targets(8, ignored=False)
    whole = gradients(3 * head.nll(hidden, targets, chunk=3), *head.parameters())
    for rows in (slice(0, 4), slice(4, 8)):
        (3 * head.nll(hidden[rows], targets[rows], chunk=3) / 2).backward()
    assert_same([p.grad for p in head.parameters()], whole)


@few_problems
def test_one_head_called_twice_in_one_graph(problem):
    head, first, second = problem.head(), random_hidden(4), random_hidden(6)
    one, two = random_targets(4, ignored=False), random_targets(6, ignored=False)
    inputs = (first, second, *head.parameters())
    found = head.nll(first, one, chunk=2) * head.nll(second, two, chunk=4)
    expected = dense_nll(problem.log_prob(head, first), one) * dense_nll(
        problem.log_prob(head, second), two
    )
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
    dense_nll(problem.log_prob(head, hidden), targets).backward()
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


@problems
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=lambda c: c.__name__)
def test_without_gradients(problem, context):
    head, hidden, targets = problem.head(), random_hidden(7), random_targets(7)
    with context():
        found = head.nll(hidden, targets, chunk=3)
    assert not found.requires_grad
    assert_same(found.clone(), dense_nll(problem.log_prob(head, hidden), targets).detach())


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_derivative_is_refused(reduction):
    head, hidden = LinearHead(4, 7), torch.randn(3, 4, requires_grad=True)
    loss = head.nll(hidden, torch.tensor([0, 1, 2]), reduction=reduction).sum()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, hidden, create_graph=True)

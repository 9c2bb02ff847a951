"""Values and gradients of every head beside the head written out, whatever chunk and reduction."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sparse_attn import Mapping
from sparse_attn.heads import LinearHead, MixtureHead
from tests.heads.plain import (
    BY_NAME,
    CASES,
    CUTOFFS,
    FEW_PROBLEMS,
    HIDDEN,
    IGNORED,
    PROBLEMS,
    SPARSE_PROBLEMS,
    WORDS,
    Problem,
    adaptive_head,
    assert_same,
    dense_log_prob,
    gradients,
    linear_head,
    mixture_head,
    random_hidden,
    random_targets,
    weighted_sum,
)

problems = pytest.mark.parametrize("problem", PROBLEMS, ids=str)
few_problems = pytest.mark.parametrize("problem", FEW_PROBLEMS, ids=str)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
POINTWISE = list(dict.fromkeys(case.name for case in CASES if case.name != "weighted-softmax"))


@problems
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("shape", [(), (2, 1, 3)], ids=str)
def test_log_prob(problem, bias, shape):
    head, hidden = problem.head(bias=bias), random_hidden(*shape)
    log_p, expected = head.log_prob(hidden), problem.log_prob(head, hidden)
    assert log_p.shape == (*shape, head.vocab)
    assert_same(log_p, expected)
    assert torch.equal(head(hidden), log_p)
    inputs, upstream = (hidden, *head.parameters()), torch.randn_like(log_p)
    found = gradients((log_p * upstream).sum(), *inputs)
    assert_same(found, gradients((expected * upstream).sum(), *inputs))


@pytest.mark.parametrize("problem", [*PROBLEMS, *SPARSE_PROBLEMS], ids=str)
@reductions
@pytest.mark.parametrize(
    ("shape", "chunk", "bias"),
    [((), 5, True), ((7,), 1, True), ((7,), 3, False), ((2, 4), 5, True), ((2, 4), 1000, True)],
)
def test_losses_and_gradients(problem, reduction, shape, chunk, bias):
    """A chunk may be smaller than the number of components, or no multiple of it."""
    head, hidden = problem.head(bias=bias), random_hidden(*shape)
    targets = random_targets(*shape, ignored=shape != (), words=head.vocab)
    found = head.loss(hidden, targets, reduction=reduction, chunk=chunk)
    expected = problem.loss(head, hidden, targets, reduction)
    assert_same(found, expected)
    if problem not in SPARSE_PROBLEMS:
        nll = head.nll(hidden, targets, reduction=reduction, chunk=chunk)
        assert torch.equal(nll, found)
    inputs = (hidden, *head.parameters())
    wanted = gradients(weighted_sum(expected), *inputs)
    assert_same(gradients(weighted_sum(found), *inputs), wanted)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("cutoffs", [(4,), (1, 2), CUTOFFS, (4, 9, 16)], ids=str)
def test_an_adaptive_softmax_equals_torch(bias, cutoffs):
    """Whose clusters have no bias."""
    head = adaptive_head(BY_NAME["softmax"], 12, bias=bias, div_value=2.0, cutoffs=cutoffs)
    twin = nn.AdaptiveLogSoftmaxWithLoss(12, WORDS, list(cutoffs), div_value=2.0, head_bias=bias)
    twin = twin.double()
    with torch.no_grad():
        for cluster in head.clusters if bias else ():
            cluster.head.bias.zero_()
        ours = [head.shortlist.weight, *([head.shortlist.bias] if bias else [])]
        ours += [w for c in head.clusters for w in (c.projection.weight, c.head.weight)]
        for theirs, weight in zip(twin.parameters(), ours, strict=True):
            theirs.copy_(weight)
    hidden = torch.randn(20, 12, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(20) % WORDS  # the first and last word of every cluster among them
    assert_same(head.log_prob(hidden), twin.log_prob(hidden))
    output, loss = twin(hidden, targets)
    assert_same(head.nll(hidden, targets, reduction="none", chunk=3), -output)
    assert_same(head.nll(hidden, targets, chunk=3), loss)
    found = gradients(head.nll(hidden, targets), hidden, head.shortlist.weight)
    assert_same(found, gradients(loss, hidden, twin.head.weight))


@reductions
@pytest.mark.parametrize("words", [[0, 1, 2, 3], [16, 16], [4, 0, 8]], ids=str)
def test_a_cluster_that_no_target_hits(words, reduction):
    """Its parameters get zeros, not None, which distributed training would wait for."""
    problem = Problem(adaptive_head, BY_NAME["plif"])
    head, targets, hidden = problem.head(), torch.tensor(words), random_hidden(len(words))
    expected = problem.loss(head, hidden, targets, reduction).sum()
    inputs = (hidden, *head.parameters())
    wanted = gradients(expected, *inputs)
    head.nll(hidden, targets, reduction=reduction).sum().backward()
    assert_same([tensor.grad for tensor in inputs], wanted)


@pytest.mark.parametrize(
    ("mapping", "prior"), [("sigsoftmax", "softmax"), ("softmax", "sigsoftmax")]
)
def test_the_other_prior_of_a_mixture(mapping, prior):
    """By default it is sigsoftmax for MoSS and softmax otherwise."""
    case = BY_NAME[mapping]
    head, hidden = mixture_head(case, prior=prior), random_hidden(6)
    assert_same(head.log_prob(hidden), dense_log_prob(case, head, hidden, prior=prior))


@pytest.mark.parametrize(
    ("name", "dtype", "bias"), [("softmax", torch.double, -200), ("sigsoftmax", torch.float, -100)]
)
def test_improbable_words_of_a_mixture_keep_their_probability(name, dtype, bias):
    """log(sum + 1e-8) would floor log p at -18.4; e^-200 of each component is 0 in float32."""
    head, hidden = mixture_head(BY_NAME[name]).to(dtype), random_hidden(5).to(dtype)
    with torch.no_grad():
        head.bias[3] = bias
    loss = head.nll(hidden, torch.full((5,), 3))
    assert 150 < loss < 250
    torch.testing.assert_close(loss, -head.log_prob(hidden)[:, 3].mean())
    assert all(gradient.isfinite().all() for gradient in gradients(loss, *head.parameters()))


def test_a_vocabulary_of_one_word():
    """log 1 = 0, and nothing to learn."""
    head = LinearHead(HIDDEN, 1, "sigsoftmax").double()
    hidden = random_hidden(3)
    assert_same(head.log_prob(hidden), torch.zeros(3, 1, dtype=torch.float64))
    assert head.nll(hidden, torch.zeros(3, dtype=torch.long)).item() == pytest.approx(0, abs=1e-12)


# Targets that are ignored


@reductions
def test_other_ignore_index(reduction):
    """One that is a word of the vocabulary, as a padding token is."""
    problem = Problem(linear_head, BY_NAME["sigsoftmax"])
    head, hidden = problem.head(), random_hidden(12)
    targets = random_targets(12, ignored=False) % 3
    found = head.nll(hidden, targets, ignore_index=0, reduction=reduction)
    expected = problem.loss(head, hidden, targets.masked_fill(targets == 0, IGNORED), reduction)
    assert_same(found, expected)


@few_problems
@pytest.mark.parametrize("shape", [(4,), (0,), (3, 0)], ids=str)
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
    poisoned[targets == IGNORED] = math.nan
    poisoned.requires_grad_()
    found, expected = head.nll(poisoned, targets, chunk=2), head.nll(hidden, targets)
    assert_same(found, expected)
    found = gradients(found, poisoned, *head.parameters())
    assert_same(found, gradients(expected, hidden, *head.parameters()))
    head, hidden = MixtureHead(4, 7, components=3, dropout=0.5), torch.randn(2, 3, 4)
    hidden[0, 1] = math.nan
    head.nll(hidden, torch.tensor([[1, IGNORED, 3], [4, 5, 6]])).backward()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())


# What is not finite


@pytest.mark.parametrize("problem", [*FEW_PROBLEMS, SPARSE_PROBLEMS[0]], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_nan_stays_in_its_token(problem, bad, chunk):
    """Its loss and the gradient of its hidden state, and no other, also within a chunk."""
    head, hidden = problem.head(), random_hidden(6, grad=False)
    targets = random_targets(6, ignored=False)
    poisoned, others = hidden.clone(), torch.arange(6) != 3
    poisoned[3, 1] = bad
    clean, found = (
        head.loss(h.requires_grad_(), targets, reduction="none", chunk=chunk)
        for h in (hidden, poisoned)
    )
    assert_same(found[others], clean[others])
    if math.isnan(bad):
        assert found[3].isnan()
        assert head.loss(poisoned, targets, chunk=chunk).isnan()
        (expected,), (gradient,) = gradients(clean.sum(), hidden), gradients(found.sum(), poisoned)
        assert gradient[3].isnan().any() or problem in SPARSE_PROBLEMS
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


# Mappings with zeros

OWN = [Mapping("sparsemax"), Mapping("entmax")]
ZEROS = [
    Mapping("r-softmax", r=0.3),
    Mapping("normalized-relu"),
    Mapping("sparsegen"),
    Mapping("top-k-softmax", k=3.0),
    Mapping("max-gap", a=1.0),
]


@pytest.mark.parametrize(
    ("mapping", "method"),
    [*((m, "nll") for m in OWN + ZEROS), *((m, "loss") for m in ZEROS)],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_log_of_a_zero_trains_nothing(mapping, method):
    head = LinearHead(HIDDEN, 11, mapping)
    hidden, targets = torch.randn(4, HIDDEN), torch.randint(11, (4,))
    advice = "loss" if mapping in OWN else "(use|train)"
    with pytest.raises(ValueError, match=rf"(?s){mapping.name}.*{advice}"):
        getattr(head, method)(hidden, targets)
    # but measures, as what is frozen does
    head.requires_grad_(False)
    losses = head.nll(hidden, targets, reduction="none", chunk=3)
    assert_same(losses, -head.log_prob(hidden)[range(4), targets])
    with pytest.raises(ValueError, match="exact zeros"):
        head.nll(hidden.requires_grad_(), targets)


@pytest.mark.parametrize("problem", SPARSE_PROBLEMS, ids=str)
def test_log_p_of_a_zero_is_minus_infinity(problem):
    head, hidden = problem.head(), 3 * random_hidden(60, grad=False)
    targets = random_targets(60, ignored=False)
    with torch.no_grad():
        expected = problem.log_prob(head, hidden)
        assert_same(head.log_prob(hidden), expected)
        assert expected.isinf().any()
        losses = head.nll(hidden, targets, reduction="none", chunk=7)
        assert_same(losses, -expected[range(60), targets])
        assert head.nll(hidden, targets) == math.inf


def test_whether_zeros_can_occur_follows_the_parameters():
    """spherical-softmax has zeros at eps = 0 only, entmax none at alpha = 1."""
    hidden, targets = torch.randn(4, HIDDEN), torch.randint(2, (4,))
    for name, with_zeros, without in (
        ("spherical-softmax", {"eps": 0.0}, {"eps": 0.1}),
        ("weighted-softmax", {"weights": [1.0, 0.0]}, {"weights": [1.0, 2.0]}),
        ("mixed-sparsemax", {"mix": 1.0}, {"mix": 0.5}),
    ):
        LinearHead(HIDDEN, 2, Mapping(name, **without)).nll(hidden, targets).backward()
        with pytest.raises(ValueError, match=name):
            LinearHead(HIDDEN, 2, Mapping(name, **with_zeros)).nll(hidden, targets)
    entropic = LinearHead(HIDDEN, 2, Mapping("entmax", alpha=1.0))
    expected = F.cross_entropy(entropic.scores(hidden), targets)
    assert_same(entropic.loss(hidden, targets), expected, rtol=1e-5, atol=1e-5)

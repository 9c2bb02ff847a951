"""MixtureHead: p = sum_k pi_k map(W tanh(U_k h) + b), its priors, reductions and dropout."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from sparse_attn import Mapping
from sparse_attn.heads import LinearHead, MixtureHead
from tests.heads.plain import (
    BY_NAME,
    CASES,
    CHECK,
    COMPONENTS,
    HIDDEN,
    IGNORED,
    VOCAB,
    assert_same,
    dense_latents,
    dense_nll,
    gradients,
    log_sigmoid,
    mixture_head,
    random_hidden,
    random_targets,
    randomise,
)

cases = pytest.mark.parametrize("case", CASES, ids=str)
some_cases = pytest.mark.parametrize(
    "case",
    [BY_NAME[name] for name in ("softmax", "sigsoftmax", "normalized-sigmoid", "plif")],
    ids=str,
)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


def dense_log_prior(head, hidden, prior):
    """log pi, [..., components]; no bias."""
    scores = (hidden.unsqueeze(-2) * head.prior.weight).sum(-1)
    log_g = {"softmax": scores, "sigsoftmax": scores + log_sigmoid(scores)}[prior]
    return log_g - log_g.logsumexp(-1, keepdim=True)


def dense_log_prob(case, head, hidden, prior=None):
    """log of the plain sum of probabilities."""
    prior = prior or ("sigsoftmax" if case.name == "sigsoftmax" else "softmax")
    latents = dense_latents(head, hidden)
    scores = (latents.unsqueeze(-2) * head.weight).sum(-1)
    scores = scores if head.bias is None else scores + head.bias
    p = case.log_prob(scores, head.mapping).exp()  # [..., components, V]
    share = dense_log_prior(head, hidden, prior).exp().unsqueeze(-1)
    return (share * p).sum(-2).log()


# Values and gradients


@cases
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)], ids=str)
def test_log_prob(case, bias, shape):
    head, hidden = mixture_head(case, bias=bias), random_hidden(*shape)
    log_p = head.log_prob(hidden)
    assert log_p.shape == (*shape, VOCAB)
    assert_same(log_p, dense_log_prob(case, head, hidden))
    assert torch.equal(head(hidden), log_p)


@cases
@reductions
def test_nll_and_its_gradients(case, reduction):
    head, hidden, targets = mixture_head(case), random_hidden(2, 4), random_targets(2, 4)
    inputs = (hidden, *head.parameters())
    found = head.nll(hidden, targets, reduction=reduction, chunk=5)
    expected = dense_nll(dense_log_prob(case, head, hidden), targets, reduction)
    assert_same(found, expected)
    upstream = torch.randn_like(expected)
    assert_same(
        gradients((found * upstream).sum(), *inputs),
        gradients((expected * upstream).sum(), *inputs),
    )


@some_cases
@reductions
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_chunk_changes_nothing(case, reduction, chunk):
    """Also one that is smaller than the number of components, or no multiple of it."""
    head, hidden, targets = mixture_head(case), random_hidden(7), random_targets(7)
    inputs = (hidden, *head.parameters())
    found = head.nll(hidden, targets, reduction=reduction, chunk=chunk)
    expected = dense_nll(dense_log_prob(case, head, hidden), targets, reduction)
    assert_same(found, expected)
    upstream = torch.randn_like(expected)
    assert_same(
        gradients((found * upstream).sum(), *inputs),
        gradients((expected * upstream).sum(), *inputs),
    )


@pytest.mark.parametrize("case", [BY_NAME["sigsoftmax"], BY_NAME["plif"]], ids=str)
@reductions
def test_gradcheck(case, reduction):
    head, targets = mixture_head(case), random_targets(3)
    names = [name for name, _ in head.named_parameters()]

    def nll(hidden, *values):
        parameters = {f"head.{name}": value for name, value in zip(names, values, strict=True)}
        return torch.func.functional_call(Nll(head), parameters, (hidden, targets, reduction))

    values = [p.detach().clone().requires_grad_() for p in head.parameters()]
    assert gradcheck(nll, (random_hidden(3), *values), **CHECK)


class Nll(nn.Module):
    """A head whose forward is its nll, for torch.func.functional_call."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, hidden, targets, reduction):
        return self.head.nll(hidden, targets, reduction=reduction, chunk=3)


@cases
@pytest.mark.parametrize("components", [1, 2, 15])
def test_rows_sum_to_one(case, components):
    """To rounding: not to 1 + V 1e-8, as in the code of MoS."""
    head = mixture_head(case, components)
    total = head.log_prob(3 * random_hidden(40)).exp().sum(-1)
    assert_same(total, torch.ones_like(total), rtol=0, atol=1e-12)


def test_improbable_words_keep_their_probability():
    """log(sum + 1e-8) would floor every log-probability at -18.4."""
    head = mixture_head(BY_NAME["softmax"])
    with torch.no_grad():
        head.bias[3] = -200.0
    hidden = random_hidden(5)
    log_p = head.log_prob(hidden)
    assert (log_p[:, 3] < -150).all()
    assert (log_p[:, 3] > -250).all()
    loss = head.nll(hidden, torch.full((5,), 3))
    assert_same(loss, -log_p[:, 3].mean())
    assert all(gradient.isfinite().all() for gradient in gradients(loss, *head.parameters()))


def test_improbable_words_in_float32():
    """Both components give e^-200, which is 0 in float32."""
    head = mixture_head(BY_NAME["sigsoftmax"]).float()
    with torch.no_grad():
        head.bias[3] = -100.0
    loss = head.nll(random_hidden(5).float(), torch.full((5,), 3))
    assert 150 < loss.item() < 250
    assert all(gradient.isfinite().all() for gradient in gradients(loss, *head.parameters()))


# Reductions to the single head


@some_cases
@pytest.mark.parametrize("components", [2, 5])
def test_equal_components_reduce_to_one(case, components):
    """Whatever the prior."""
    head = mixture_head(case, components)
    with torch.no_grad():
        for tensor in (head.latent.weight, head.latent.bias):
            first = tensor.unflatten(0, (components, -1))[0]
            tensor.copy_(first.repeat(components, *[1] * (tensor.dim() - 1)))
    single = LinearHead(HIDDEN, VOCAB, head.mapping, tie=head.weight).double()
    with torch.no_grad():
        single.bias.copy_(head.bias)
    hidden, targets = random_hidden(6), random_targets(6)
    latent = dense_latents(head, hidden)[..., 0, :]
    assert_same(head.log_prob(hidden), single.log_prob(latent))
    assert_same(head.nll(hidden, targets), single.nll(latent, targets))


@cases
def test_one_component_is_the_single_head(case):
    """On tanh(U h + c), with pi = 1."""
    head = mixture_head(case, components=1)
    single = LinearHead(HIDDEN, VOCAB, head.mapping, tie=head.weight).double()
    with torch.no_grad():
        single.bias.copy_(head.bias)
    hidden, targets = random_hidden(6), random_targets(6)
    latent = torch.tanh(hidden @ head.latent.weight.T + head.latent.bias)
    assert_same(head.log_prob(hidden), single.log_prob(latent))
    assert_same(head.nll(hidden, targets), single.nll(latent, targets))


def test_one_component_has_no_use_for_its_prior():
    head, hidden = mixture_head(BY_NAME["softmax"], components=1), random_hidden(6)
    (gradient,) = gradients(head.nll(hidden, random_targets(6)), head.prior.weight)
    assert_same(gradient, torch.zeros_like(gradient))


# Priors


@pytest.mark.parametrize(
    ("mapping", "prior", "expected"),
    [
        ("softmax", None, "softmax"),
        ("sigsoftmax", None, "sigsoftmax"),
        ("sigsoftmax", "softmax", "softmax"),
        ("softmax", "sigsoftmax", "sigsoftmax"),
        ("plif", None, "softmax"),
        ("normalized-sigmoid", None, "softmax"),
    ],
)
def test_prior(mapping, prior, expected):
    """MoSS: sigsoftmax in the components and in the prior; softmax otherwise."""
    case = BY_NAME[mapping]
    head, hidden = mixture_head(case, prior=prior), random_hidden(6)
    assert_same(head.log_prob(hidden), dense_log_prob(case, head, hidden, prior=expected))


def test_prior_of_a_learned_sigsoftmax():
    """MoSS with a learned b in the components."""
    case = BY_NAME["sigsoftmax-bias"]
    head, hidden = mixture_head(case), random_hidden(6)
    assert_same(head.log_prob(hidden), dense_log_prob(case, head, hidden, prior="sigsoftmax"))


# Parameters


def test_one_mapping_for_all_components():
    """MoS + PLIF: one set of slopes (Ganea et al. count 2 K parameters once)."""
    head = MixtureHead(HIDDEN, VOCAB, Mapping("plif", knots=50), components=4)
    slopes = [p for name, p in head.named_parameters() if "slopes" in name]
    assert [len(p) for p in slopes] == [50]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_number_of_parameters(bias):
    """W [V, e], b [V], U_k [e, d] and its bias, V [K, d]."""
    head = MixtureHead(HIDDEN, VOCAB, components=4, latent=3, bias=bias)
    expected = VOCAB * 3 + bias * VOCAB + 4 * 3 * (HIDDEN + 1) + 4 * HIDDEN
    assert sum(p.numel() for p in head.parameters()) == expected
    assert (head.hidden, head.vocab, head.components) == (HIDDEN, VOCAB, 4)


def test_fifteen_components_by_default():
    assert MixtureHead(HIDDEN, VOCAB).components == 15


def test_latent_size():
    """As given; that of the tied weight; that of the hidden states."""
    assert MixtureHead(HIDDEN, VOCAB, latent=3).weight.shape == (VOCAB, 3)
    assert MixtureHead(HIDDEN, VOCAB).weight.shape == (VOCAB, HIDDEN)
    embedding = nn.Embedding(VOCAB, 4)
    head = MixtureHead(HIDDEN, VOCAB, tie=embedding)
    assert head.weight is embedding.weight
    assert head.log_prob(torch.randn(2, HIDDEN)).shape == (2, VOCAB)


@pytest.mark.parametrize("as_parameter", [True, False], ids=["parameter", "embedding"])
def test_tied_gradients_of_both_uses_add_up_once(as_parameter):
    case = BY_NAME["sigsoftmax"]
    embedding = nn.Embedding(VOCAB, 4, dtype=torch.float64)
    project = torch.randn(4, HIDDEN, dtype=torch.float64)
    tie = embedding.weight if as_parameter else embedding
    head = MixtureHead(HIDDEN, VOCAB, "sigsoftmax", COMPONENTS, tie=tie).double()
    randomise(head)
    words, targets = torch.randint(VOCAB, (2, 5)), random_targets(2, 5)
    hidden = embedding(words) @ project
    found = gradients(head.nll(hidden, targets, chunk=4), embedding.weight)
    expected = gradients(dense_nll(dense_log_prob(case, head, hidden), targets), embedding.weight)
    assert_same(found, expected)
    model = nn.ModuleList([embedding, head])
    assert sum(p is embedding.weight for p in model.parameters()) == 1


@pytest.mark.parametrize("frozen", ["hidden", "weight", "latent", "prior", "mapping"])
def test_frozen_inputs(frozen):
    case = BY_NAME["sigsoftmax-bias"]
    head, hidden, targets = mixture_head(case), random_hidden(5), random_targets(5)
    named = [("hidden", hidden), *head.named_parameters()]
    for name, tensor in named:
        tensor.requires_grad_(not name.startswith(frozen))
    inputs = [tensor for _, tensor in named if tensor.requires_grad]
    assert len(inputs) < len(named)
    expected = dense_nll(dense_log_prob(case, head, hidden), targets)
    assert_same(
        gradients(head.nll(hidden, targets, chunk=2), *inputs), gradients(expected, *inputs)
    )


@reductions
def test_backward_three_times(reduction):
    head, hidden, targets = mixture_head(BY_NAME["plif"]), random_hidden(5), random_targets(5)
    inputs = (hidden, *head.parameters())
    loss = head.nll(hidden, targets, reduction=reduction, chunk=2).sum()
    once = [gradient.clone() for gradient in gradients(loss, *inputs)]
    for _ in range(3):
        loss.backward(retain_graph=True)
    assert_same([tensor.grad for tensor in inputs], [3 * gradient for gradient in once])


def test_nothing_to_predict():
    """All targets ignored, and no tokens at all."""
    head, hidden = mixture_head(BY_NAME["plif"]), random_hidden(4)
    ignored = torch.full((4,), IGNORED)
    empty = torch.zeros(0, dtype=torch.long)
    for states, targets in ((hidden, ignored), (hidden[:0], empty)):
        assert head.nll(states, targets).isnan()
        total = head.nll(states, targets, reduction="sum")
        assert total.item() == 0
        for gradient in gradients(total, *head.parameters()):
            assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=lambda c: c.__name__)
def test_without_gradients(context):
    case = BY_NAME["sigsoftmax"]
    head, hidden, targets = mixture_head(case), random_hidden(7), random_targets(7)
    with context():
        found = head.nll(hidden, targets, chunk=3)
    assert_same(found.clone(), dense_nll(dense_log_prob(case, head, hidden), targets).detach())


def test_autocast():
    """bfloat16 scores of size 3 are good to 3 / 256."""
    case = BY_NAME["sigsoftmax"]
    head, hidden, targets = mixture_head(case), random_hidden(64), random_targets(64)
    expected = dense_nll(dense_log_prob(case, head, hidden), targets).item()
    head.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head.nll(hidden.float(), targets, chunk=16)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, abs=0.03)
    assert all(gradient.isfinite().all() for gradient in gradients(loss, *head.parameters()))


@pytest.mark.parametrize("name", ["sparsemax", "entmax", "r-softmax"])
def test_no_training_of_mixtures_of_sparse_mappings(name):
    """A mixture has no loss of its own, and a zero has no logarithm."""
    with pytest.raises(ValueError, match=name):
        MixtureHead(HIDDEN, VOCAB, name, 2).loss(torch.randn(3, HIDDEN), torch.tensor([0, 1, 2]))

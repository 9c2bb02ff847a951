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
    VOCAB,
    assert_same,
    dense_latents,
    dense_log_prob,
    dense_nll,
    gradients,
    mixture_head,
    random_hidden,
    random_targets,
    randomise,
)

cases = pytest.mark.parametrize("case", CASES, ids=str)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


# Values and gradients


@pytest.mark.parametrize(
    ("name", "dtype", "bias"), [("softmax", torch.double, -200), ("sigsoftmax", torch.float, -100)]
)
def test_improbable_words_keep_their_probability(name, dtype, bias):
    """log(sum + 1e-8) would floor log p at -18.4; e^-200 of each component is 0 in float32."""
    head, hidden = mixture_head(BY_NAME[name]).to(dtype), random_hidden(5).to(dtype)
    with torch.no_grad():
        head.bias[3] = bias
    loss = head.nll(hidden, torch.full((5,), 3))
    assert 150 < loss < 250
    torch.testing.assert_close(loss, -head.log_prob(hidden)[:, 3].mean())
    assert all(gradient.isfinite().all() for gradient in gradients(loss, *head.parameters()))


# Reductions to the single head


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
    ("mapping", "prior"), [("sigsoftmax", "softmax"), ("softmax", "sigsoftmax")]
)
def test_prior(mapping, prior):
    """Those by default, sigsoftmax for MoSS and softmax otherwise, are in test_nll.py."""
    case = BY_NAME[mapping]
    head, hidden = mixture_head(case, prior=prior), random_hidden(6)
    assert_same(head.log_prob(hidden), dense_log_prob(case, head, hidden, prior=prior))


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


# Dropout on the latent: one mask for all positions of a sequence


def dropping_head(dropout=0.5, components=COMPONENTS):
    """Words 0 .. 3 score their latent unit, word 4 scores 0."""
    head = MixtureHead(HIDDEN, 5, components=components, bias=False, latent=4, dropout=dropout)
    head.double()
    randomise(head)
    with torch.no_grad():
        head.weight.copy_(torch.eye(5, 4))
    return head


def test_dropout_scales_what_it_keeps():
    """One component: the scores are log p_j - log p_4, either 0 or tanh(.) / (1 - dropout)."""
    head = dropping_head(0.25, components=1)
    hidden = random_hidden(200, 1)
    log_p = head.log_prob(hidden)
    scores = (log_p - log_p[..., 4:])[..., :4]
    latent = dense_latents(head, hidden)[..., 0, :]
    dropped = scores.abs() < 1e-12
    assert_same(scores, torch.where(dropped, 0.0, latent / 0.75))
    # 800 units at 0.25: three standard deviations are 0.046
    assert dropped.double().mean().item() == pytest.approx(0.25, abs=0.046)


def test_one_mask_for_all_positions_of_a_sequence():
    """Equal hidden states at every position come out equal, sequences differ."""
    head = dropping_head()
    hidden = random_hidden(1, 1).expand(6, 9, -1)
    log_p = head.log_prob(hidden)
    assert_same(log_p, log_p[:, :1].expand_as(log_p), rtol=0, atol=1e-14)
    assert (log_p[0, 0] - log_p[1:, 0]).abs().amax(-1).max() > 1e-3
    losses = head.nll(hidden, torch.ones(6, 9, dtype=torch.long), reduction="none", chunk=4)
    assert_same(losses, losses[:, :1].expand_as(losses), rtol=0, atol=1e-14)
    assert losses[:, 0].std() > 1e-3


def test_rows_of_a_flat_batch_have_dropout_masks_of_their_own():
    head = MixtureHead(6, 5, components=2, dropout=0.5)
    hidden = torch.ones(200, 6)
    kept = head.latents(hidden) != 0
    assert len(kept.flatten(1).unique(dim=0)) > 100
    sequences = head.latents(hidden.view(4, 50, 6)) != 0
    assert (sequences == sequences[:, :1]).all()


def test_components_drop_different_units():
    head = dropping_head()
    with torch.no_grad():
        for tensor in (head.latent.weight, head.latent.bias):
            tensor.copy_(tensor[:4].repeat(COMPONENTS, *[1] * (tensor.dim() - 1)))
        head.prior.weight.zero_()
    # with one mask for all components, log p of a word has two values: kept and dropped
    log_p = head.log_prob(random_hidden(1, 1).expand(200, 1, -1))
    odds = (log_p - log_p[..., 4:])[:, 0, 0]
    assert len(odds.mul(1e6).round().unique()) > 2


def test_no_dropout_in_evaluation():
    head, without, hidden = dropping_head().eval(), dropping_head(0.0), random_hidden(3, 4)
    without.load_state_dict(head.state_dict())
    assert torch.equal(head.log_prob(hidden), without.log_prob(hidden))


def test_every_call_drops_anew():
    head, hidden = dropping_head(), random_hidden(3, 4)
    assert not torch.equal(head.log_prob(hidden), head.log_prob(hidden))


@reductions
def test_gradients_see_the_mask_of_the_forward_pass(reduction):
    """Finite differences with the generator set back before every call."""
    head, targets = dropping_head(), torch.randint(5, (2, 3))

    def nll(hidden):
        torch.manual_seed(1)
        return head.nll(hidden, targets, reduction=reduction, chunk=4)

    assert gradcheck(nll, random_hidden(2, 3), **CHECK)

"""Dropout on the latents of a mixture: one mask for all positions of a sequence."""

import pytest
import torch
from torch.autograd import gradcheck

from sparse_attn.heads import MixtureHead
from tests.heads.plain import (
    CHECK,
    COMPONENTS,
    HIDDEN,
    assert_same,
    dense_latents,
    random_hidden,
    randomise,
)


def dropping_head(dropout=0.5, components=COMPONENTS):
    """Words 0 .. 3 score their latent unit, word 4 scores 0."""
    head = MixtureHead(HIDDEN, 5, components=components, bias=False, latent=4, dropout=dropout)
    head.double()
    randomise(head)
    with torch.no_grad():
        head.weight.copy_(torch.eye(5, 4))
    return head


def test_it_scales_what_it_keeps():
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
    # rows of a flat batch have masks of their own
    kept = head.latents(hidden[:1, :1].expand(200, 1, -1).squeeze(1)) != 0
    assert len(kept.flatten(1).unique(dim=0)) > 100


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


def test_every_call_drops_anew_and_none_in_evaluation():
    head, without, hidden = dropping_head(), dropping_head(0.0), random_hidden(3, 4)
    assert not torch.equal(head.log_prob(hidden), head.log_prob(hidden))
    without.load_state_dict(head.state_dict())
    assert torch.equal(head.eval().log_prob(hidden), without.log_prob(hidden))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_see_the_mask_of_the_forward_pass(reduction):
    """Finite differences with the generator set back before every call."""
    head, targets = dropping_head(), torch.randint(5, (2, 3))

    def nll(hidden):
        torch.manual_seed(1)
        return head.nll(hidden, targets, reduction=reduction, chunk=4)

    assert gradcheck(nll, random_hidden(2, 3), **CHECK)

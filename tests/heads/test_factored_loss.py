"""The losses that see scores through z_c, ||z||^2 and sum z."""

import math

import pytest
import torch

from sparse_attn import functional
from sparse_attn.heads.factored_loss import LOSSES
from sparse_attn.losses import bouchard_bound

EPS = 0.0198
SCORES = torch.tensor([[1.0, 0.2, -1.5, 0.7], [-3.0, 2.0, 0.0, 0.5]], dtype=torch.float64)
TARGETS = torch.tensor([1, 0])


def loss_of(name, scores, targets):
    a = scores.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return LOSSES[name].of(a, scores.square().sum(-1), scores.sum(-1), scores.shape[-1], EPS)


def likelihood(log_p):
    return -log_p.gather(-1, TARGETS.unsqueeze(-1)).squeeze(-1)


def test_losses_against_the_mappings():
    expected = {
        "spherical": likelihood(functional.log_spherical_softmax(SCORES, EPS)),
        "taylor": likelihood(functional.log_taylor_softmax(SCORES)),
        "mse": (SCORES - torch.eye(4, dtype=torch.float64)[TARGETS]).square().sum(-1) / 2,
        "bouchard": bouchard_bound(SCORES) + likelihood(SCORES),
    }
    assert expected.keys() == LOSSES.keys()
    for name, value in expected.items():
        torch.testing.assert_close(loss_of(name, SCORES, TARGETS), value, rtol=1e-12, atol=1e-12)
    assert loss_of("spherical", SCORES, TARGETS)[0].item() == pytest.approx(
        -math.log(0.015495), abs=1e-4
    )
    assert loss_of("taylor", SCORES, TARGETS)[0].item() == pytest.approx(
        -math.log(0.193959), abs=1e-5
    )


@pytest.mark.parametrize("name", LOSSES)
def test_rounding_below_zero_gives_no_nan(name):
    a, s = torch.zeros(1), torch.zeros(1)
    assert LOSSES[name].of(a, torch.tensor([-1e-3]), s, 4, EPS).isfinite().all()

"""Dirichlet draws against known moments, and the floor against the singular value decomposition."""

import math

import numpy as np
import pytest
import torch
from scipy.special import digamma, polygamma

from experiments.bottleneck.targets import draw, log_matrix_floors


@pytest.mark.parametrize("alpha", [0.05, 0.1, 1.0, 3.0])
def test_moments_of_the_draws(alpha: float) -> None:
    words, contexts = 8, 20_000
    p = draw(alpha, contexts, words, seed=0).log_p.double().exp()
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[:, 0]), atol=1e-6, rtol=0)
    variance = (words - 1) / (words**2 * (words * alpha + 1))
    error = 5 * math.sqrt(variance / contexts)
    assert (p.mean(0) - 1 / words).abs().max() < error
    assert p.var(0).mean().item() == pytest.approx(variance, rel=0.02)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0])
def test_moments_of_the_logarithms(alpha: float) -> None:
    """E log P = psi(alpha) - psi(M alpha), Var log P = psi'(alpha) - psi'(M alpha)."""
    log_p = draw(alpha, 4_000, 50, seed=1).log_p.double()
    mean = digamma(alpha) - digamma(50 * alpha)
    variance = polygamma(1, alpha) - polygamma(1, 50 * alpha)
    assert log_p.mean().item() == pytest.approx(mean, rel=0.02)
    assert log_p.var().item() == pytest.approx(variance, rel=0.03)


def test_logarithms_are_finite_where_the_draws_underflow(rng: np.random.Generator) -> None:
    log_p = draw(0.002, 500, 40, seed=3).log_p
    assert (rng.dirichlet([0.002] * 40, 500) == 0).any()
    assert (log_p.double().exp() == 0).any()
    assert log_p.isfinite().all()


def test_seed_decides_the_draws() -> None:
    # more rows than are drawn at a time
    first, again, other = (draw(0.1, 1_500, 4, seed).log_p for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[:500], first[1_000:])


@pytest.mark.parametrize("shape", [(2_300, 12), (12, 40), (9, 9)])
def test_floors_against_the_singular_values(
    shape: tuple[int, int], rng: np.random.Generator
) -> None:
    log_p = torch.from_numpy(rng.standard_normal(shape) - 3).float()
    u, s, v = np.linalg.svd(log_p.double().numpy(), full_matrices=False)
    floors = log_matrix_floors(log_p)
    assert floors.shape == (min(shape) - 1,)
    for dimension in range(len(floors)):
        rank = dimension + 1
        nearest = (u[:, :rank] * s[:rank]) @ v[:rank]
        error = np.square(log_p.double().numpy() - nearest).mean()
        assert floors[dimension].item() == pytest.approx(error, rel=1e-9, abs=1e-12)

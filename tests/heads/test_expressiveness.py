"""What heads can represent: constructions, each with the error that it allows."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparse_attn.heads import LinearHead
from sparse_attn.mappings import get_spec
from sparse_attn.mappings.base import softplus_inverse

Function = Callable[[Tensor], Tensor]
BOUND = 3.0


@pytest.mark.parametrize(("contexts", "vocab"), [(40, 7), (5, 12)])
def test_softmax_reaches_every_matrix_of_log_probabilities_of_its_rank(contexts: int, vocab: int):
    """A row may be shifted freely, so that the rank is vocab - 1 at most, and d of it enough."""
    target = (4 * torch.randn(contexts, vocab, dtype=torch.float64)).log_softmax(-1)
    u, s, v = torch.linalg.svd(target - target.mean(-1, keepdim=True), full_matrices=False)
    rank = min(contexts, vocab - 1)
    for d in (rank, rank - 1):
        head = LinearHead(d, vocab, bias=False).double()
        head.weight.data = v[:d].T
        error = (head.log_prob(u[:, :d] * s[:d]) - target).abs().max()
        assert (error < 1e-12) == (d == rank)


def smooth(z: Tensor) -> Tensor:
    """Increasing, |f''| <= 5.2 of the first term + 1 of the second."""
    return 2 * torch.atan(2 * z) + z.exp() / math.exp(BOUND)


def kinked(z: Tensor) -> Tensor:
    """Increasing and continuous; steep at 0.1, where no knot is."""
    return z / 10 + 5 * (z - 0.1).clamp(0, 0.02) + (z + 2.2).clamp(min=0).sqrt()


def grid_and_increments(f: Function, bins: int) -> tuple[Tensor, Tensor]:
    """A fine grid of [-T, T], and how much f grows in each of the bins."""
    z = torch.linspace(-BOUND, BOUND, 20_001, dtype=torch.float64)
    ends = torch.linspace(-BOUND, BOUND, bins + 1, dtype=torch.float64)
    return z, f(ends).diff()


def distance(found: Tensor, wanted: Tensor) -> float:
    """The largest difference of two functions that start at the same value."""
    return ((found - found[0]) - (wanted - wanted[0])).abs().max().item()


@pytest.mark.parametrize("knots", [4, 30, 1000])
@pytest.mark.parametrize("f", [smooth, kinked])
def test_a_plif_comes_as_near_to_an_increasing_function_as_its_bins_are_fine(
    f: Function, knots: int
):
    """Interpolating, it is off by what f grows in a bin at most; smooth f by width^2 |f''| / 8."""
    z, increments = grid_and_increments(f, knots)
    width = 2 * BOUND / knots
    log_g = get_spec("plif").log_g
    assert log_g is not None
    error = distance(log_g(z, softplus_inverse(increments / width), BOUND), f(z))
    assert error <= increments.max().item()
    if f is smooth:
        assert error <= width**2 * 6.2 / 8 + 1e-12


@pytest.mark.parametrize("units", [4, 30, 1000])
@pytest.mark.parametrize("f", [smooth, kinked])
def test_a_monotone_network_comes_as_near_to_an_increasing_function(f: Function, units: int):
    """One step in each bin, as high as f grows in it, and steep: e^-4 of it is left a bin away.

    The steps themselves are off by one increment at most, and each unit from its step by
    v_k e^(-u |z - c_k|), where the distances are two sequences with gaps of one bin.
    """
    z, increments = grid_and_increments(f, units)
    width = 2 * BOUND / units
    centers = -BOUND + width * (torch.arange(units, dtype=torch.float64) + 0.5)
    slope = torch.full_like(centers, 4 / width)
    log_g = get_spec("monotone").log_g
    assert log_g is not None
    found = log_g(z, softplus_inverse(increments), softplus_inverse(slope), -slope * centers)
    largest = increments.max().item()
    off = (found - (f(z) - f(z[:1]))).abs().max().item()
    assert off <= largest * (1 + 2 / (1 - math.exp(-4)))
    assert found.diff().min() >= 0

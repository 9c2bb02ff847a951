"""Numerical rank against a direct singular value decomposition, and the ranks of each mapping."""

import math

import pytest
import torch

from experiments.language_modeling import rank as module
from experiments.language_modeling.rank import exact_rank, numerical_rank
from sparse_attn import Mapping

EPS = 2.0**-23


@pytest.mark.parametrize("shape", [(30, 17), (17, 30), (20, 20), (1, 5), (5, 1)])
@pytest.mark.parametrize("block", [3, 4096])
def test_singular_values_are_those_of_a_decomposition(
    shape: tuple[int, int], block: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_BLOCK", block)
    matrix = torch.randn(shape)
    found = numerical_rank(matrix)
    expected = torch.linalg.svdvals(matrix.double())
    torch.testing.assert_close(found.singular_values, expected, rtol=1e-12, atol=0)
    assert found.rank == min(shape)
    assert found.sigma_max == pytest.approx(expected[0].item(), rel=1e-12)
    threshold = 0.5 * math.sqrt(shape[0] + shape[1] + 1) * expected[0].item() * EPS
    assert found.tolerance == pytest.approx(threshold, rel=1e-12)


def matrix_with(values: list[float], rows: int = 40, columns: int = 50) -> torch.Tensor:
    left = torch.linalg.qr(torch.randn(rows, rows, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(columns, columns, dtype=torch.float64))[0]
    sigma = torch.tensor(values, dtype=torch.float64)
    return left[:, : len(values)] * sigma @ right[: len(values)]


def test_threshold_lies_where_the_paper_puts_it():
    # 1/2 sqrt(91) 2^-23 = 5.69e-7
    assert numerical_rank(matrix_with([3.0, 3e-3, 3 * 5.8e-7])).rank == 3
    assert numerical_rank(matrix_with([3.0, 3e-3, 3 * 5.6e-7])).rank == 2


def test_gram_matrix_resolves_what_the_threshold_asks():
    found = numerical_rank(matrix_with([1.0, 1e-3, 1e-6, 1e-7]))
    assert found.rank == 3
    assert found.singular_values[2].item() == pytest.approx(1e-6, rel=1e-2)
    assert found.singular_values[4:].max() < 1.5e-7  # rounding, far below the threshold


def toy(mapping: Mapping, bias: bool, dtype: torch.dtype) -> int:
    """M = 60 words, d = 5, N = 400 contexts, all Gaussian."""
    weight, hidden = torch.randn(60, 5, dtype=dtype), torch.randn(400, 5, dtype=dtype)
    scores = hidden @ weight.T
    if bias:
        scores = scores + torch.randn(60, dtype=dtype)
    with torch.no_grad():
        return numerical_rank(mapping.log(scores)).rank


def random_plif() -> Mapping:
    mapping = Mapping("plif", knots=1000)
    with torch.no_grad():
        mapping.raw_slopes.add_(torch.randn(1000))
    return mapping


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
def test_softmax_has_rank_d_plus_1_and_the_others_are_full(bias: bool, dtype: torch.dtype):
    assert toy(Mapping("softmax"), bias, dtype) == (7 if bias else 6)
    for name in ("sigsoftmax", "normalized-sigmoid", "taylor-softmax"):
        assert toy(Mapping(name), bias, dtype) == 60, name
    assert toy(random_plif(), bias, dtype) == 60
    # slopes of 1 make it softmax
    assert toy(Mapping("plif"), bias, dtype) == (7 if bias else 6)


def test_spectrum_is_spread_over_the_logarithm():
    found = numerical_rank(torch.randn(300, 400))
    points = found.spectrum(20)
    assert points[0] == (1, 1.0)
    assert [i for i, _ in points] == sorted({i for i, _ in points})
    assert points[-1][0] == 300
    assert 15 <= len(points) <= 20
    for i, share in points:
        assert share == found.singular_values[i - 1].item() / found.sigma_max
    assert numerical_rank(torch.ones(1, 4)).spectrum() == [(1, 1.0)]


@pytest.mark.parametrize("bias", [False, True])
def test_exact_rank_sees_directions_below_the_threshold_of_float32(bias: bool):
    hidden = torch.randn(400, 5, dtype=torch.float64) * torch.tensor([1.0, 1.0, 1.0, 1e-7, 1e-8])
    scores = hidden @ torch.randn(60, 5, dtype=torch.float64).T
    scores = scores + (10 * torch.randn(60, dtype=torch.float64) if bias else 0.0)
    log_p = Mapping("softmax").log(scores)
    assert exact_rank(log_p).rank == 6 + bias
    assert numerical_rank(log_p).rank == 4 + bias
    assert exact_rank(Mapping("sigsoftmax").log(scores)).rank > 7

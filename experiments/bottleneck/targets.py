"""Dirichlet targets, and the least error of a low-rank approximation of their logarithm."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

ROWS = 1_000  # contexts per block


@dataclass(frozen=True)
class Targets:
    """N distributions over M words.

    Attributes:
        log_p: [N, M] float32, log P* in nats, finite.
    """

    log_p: Tensor

    @cached_property
    def floors(self) -> Tensor:
        """[min(N, M) - 1], `log_matrix_floors` of log P*."""
        return log_matrix_floors(self.log_p)


def draw(alpha: float, contexts: int, vocabulary: int, seed: int) -> Targets:
    """P* ~ Dirichlet(alpha, ..., alpha), N rows of M words.

    log P* = log X - LSE(log X) with log X = log Gamma(alpha + 1, 1) + log(U) / alpha in float64, so
    that X ~ Gamma(alpha, 1), but log X stays finite where X underflows (in float32, half of the
    draws at alpha = 0.01).

    Raises:
        ValueError: alpha not above 0, or no context or word.
    """
    if not alpha > 0:
        raise ValueError(f"alpha={alpha}: expected a finite number above 0, such as 0.1")
    if contexts < 1 or vocabulary < 1:
        raise ValueError(f"contexts={contexts}, vocabulary={vocabulary}: expected at least 1 each")
    rng = np.random.default_rng(seed)
    log_p = torch.empty(contexts, vocabulary)
    for rows in log_p.split(ROWS):
        shape = tuple(rows.shape)
        # 1 - random() is in (0, 1]
        log_x = np.log(rng.standard_gamma(alpha + 1, shape)) + np.log1p(-rng.random(shape)) / alpha
        rows.copy_(torch.from_numpy(log_x).log_softmax(-1))
    return Targets(log_p)


def log_matrix_floors(log_p: Tensor) -> Tensor:
    """Floor of ||log P* - log Q||_F^2 / (N M) for linear softmax, by dimension.

    floors[D] = sum_{i >= D+2} sigma_i^2 / (N M), in nats^2 per entry, D = 0, 1, ..., where sigma_1
    >= sigma_2 >= ... are the singular values of log P*.

    Why: linear softmax of dimension D without a bias has log Q = H W^T - LSE 1^T, a product of
    rank D and one number a row, so rank(log Q) <= D + 1. By Eckart-Young no matrix of that rank is
    nearer to log P* than the truncated singular value decomposition. The floor holds for the error
    of the log-matrix, not for KL, and not for heads whose log-matrix can have full rank
    (sigsoftmax, lms, plif, mos). The error counts all entries alike, but cross entropy gives little
    weight to entries with small P*, so training ends well above the floor.
    Source: Ganea et al. 2019, Theorem 1, with the square that its right side lacks.

    Args:
        log_p: [N, M], finite.

    Returns:
        [min(N, M) - 1] float64 on the CPU.
    """
    tall = log_p if len(log_p) >= log_p.shape[1] else log_p.T
    gram = tall.new_zeros(tall.shape[1], tall.shape[1], dtype=torch.float64)
    for rows in tall.split(ROWS):
        gram += rows.double().T @ rows.double()
    squares = torch.linalg.eigvalsh(gram).clamp(min=0)  # sigma^2, ascending
    return (squares.cumsum(0).flip(0)[1:] / log_p.numel()).cpu()

"""Numerical rank of a matrix of log-probabilities.

Log-softmax of W h + b over d hidden units spans at most d + 2 dimensions, whatever the number of
words and contexts: the softmax bottleneck (Yang et al. 2018; Kanai et al. 2018, theorem 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# rows of the longer side held in float64 at once
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Rank:
    """Numerical rank of a matrix.

    Attributes:
        rank: number of singular values above `tolerance`.
        sigma_max: the largest singular value.
        tolerance: singular values up to this count as 0.
        singular_values: all of them, descending, (min(M, T),) float64.
    """

    rank: int
    sigma_max: float
    tolerance: float
    singular_values: Tensor

    def spectrum(self, points: int = 200) -> list[tuple[int, float]]:
        """(i, sigma_i / sigma_max) for at most `points` i >= 1, evenly spaced in log i."""
        count = len(self.singular_values)
        places = torch.logspace(0, math.log10(count), points, dtype=torch.float64)
        kept = places.round().long().clamp(1, count).unique().tolist()
        return [(i, self.singular_values[i - 1].item() / self.sigma_max) for i in kept]


def numerical_rank(matrix: Tensor) -> Rank:
    """#{i: sigma_i > 1/2 sqrt(M + T + 1) sigma_max eps}, with float32's eps = 2^-23.

    The threshold is that of Numerical Recipes (Press et al. 2007, section 2.6), used by Kanai et
    al. 2018 and Parthiban et al. 2021. The sigma_i are roots of the eigenvalues of the Gram matrix
    of the smaller side in float64, n x n x 8 bytes; 10,000 x 10,000 takes two or three minutes on
    one core. Squaring loses singular values below sqrt(2^-52) = 1.5e-8 of sigma_max. The threshold
    is far above, at 6e-8 sqrt(M + T + 1), or 8.4e-6 of sigma_max for 10,000 x 10,000; a threshold
    with the eps of float64 would be below.

    Args:
        matrix: (M, T) or its transpose; computed on its device.

    Raises:
        ValueError: not a non-empty matrix, or not finite; floor log 0 first, as
            `log_prob_matrix` does.
    """
    _check(matrix)
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    side = tall.shape[1]
    gram = torch.zeros(side, side, dtype=torch.float64, device=matrix.device)
    for block in tall.split(_BLOCK):
        part = block.double()
        gram.addmm_(part.T, part)
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(0).cpu()
    return _counted(values, matrix, torch.finfo(torch.float32).eps)


def exact_rank(matrix: Tensor) -> Rank:
    """`numerical_rank` with the eps of float64, 2^-52, for log-probabilities computed in float64.

    It also counts directions along which hidden states hardly vary, which the float32 threshold
    drops. It computes the singular values directly; 10,000 x 2,000 takes about 15 seconds.

    Raises:
        TypeError: the matrix is not float64.
        ValueError: not a non-empty matrix, or not finite.
    """
    if matrix.dtype != torch.float64:
        raise TypeError(f"matrix: expected torch.float64, got {matrix.dtype}")
    _check(matrix)
    values = torch.linalg.svdvals(matrix).cpu()
    return _counted(values, matrix, torch.finfo(torch.float64).eps)


def _counted(values: Tensor, matrix: Tensor, eps: float) -> Rank:
    largest = values[0].item()
    tolerance = 0.5 * math.sqrt(sum(matrix.shape) + 1) * largest * eps
    return Rank(int((values > tolerance).sum()), largest, tolerance, values)


def _check(matrix: Tensor) -> None:
    if matrix.dim() != 2 or matrix.numel() == 0:
        raise ValueError(f"matrix: expected M x T numbers, got shape {tuple(matrix.shape)}")
    if not matrix.isfinite().all():
        raise ValueError(
            "matrix: expected finite numbers, got NaN or infinities; give log 0 a finite value as "
            "`log_prob_matrix` does, or look for a model that diverged"
        )

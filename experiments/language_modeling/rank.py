"""How many singular values of a matrix of log-probabilities are not rounding errors.

Log-softmax of W h + b over d hidden units spans at most d + 2 dimensions, whatever the number of
words and contexts: the softmax bottleneck (Yang et al. 2018; Kanai et al. 2018, theorem 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# rows of the longer side that are held in float64 at once
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Rank:
    """Numerical rank of a matrix.

    Attributes:
        rank: number of singular values above `tolerance`.
        sigma_max: the largest singular value.
        tolerance: what counts as 0.
        singular_values: all of them, descending, (min(M, T),) float64.
    """

    rank: int
    sigma_max: float
    tolerance: float
    singular_values: Tensor

    def spectrum(self, points: int = 200) -> list[tuple[int, float]]:
        """(i, sigma_i / sigma_max) for at most `points` i, evenly spread over log i, i from 1."""
        count = len(self.singular_values)
        places = torch.logspace(0, math.log10(count), points, dtype=torch.float64)
        kept = places.round().long().clamp(1, count).unique().tolist()
        return [(i, self.singular_values[i - 1].item() / self.sigma_max) for i in kept]


def numerical_rank(matrix: Tensor) -> Rank:
    """#{i: sigma_i > 1/2 sqrt(M + T + 1) sigma_max eps}, with eps = 2^-23 that of float32.

    The threshold of Numerical Recipes (Press et al. 2007, section 2.6), which Kanai et al. 2018 and
    Parthiban et al. 2021 count with. The sigma_i are roots of the eigenvalues of the Gram matrix of
    the smaller side in float64, n x n x 8 bytes; 10,000 x 10,000 take two or three minutes on one
    core. Squaring loses what is below sqrt(2^-52) = 1.5e-8 of sigma_max. The threshold lies far
    above, at 6e-8 sqrt(M + T + 1), such as 8.4e-6 of sigma_max for 10,000 x 10,000. One with the
    eps of float64 would lie below, and cannot be applied to these singular values.

    Args:
        matrix: (M, T) or its transpose; the device it is on does the work.

    Raises:
        ValueError: not a matrix with entries, or one that is not finite: floor log 0 first, as
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
    """`numerical_rank` with the eps of float64, 2^-52, for log-probabilities worked out in float64.

    A direction along which hidden states hardly vary lies below the threshold of float32 and far
    above this one. By singular values themselves; 10,000 x 2,000 take about a quarter of a minute.

    Raises:
        TypeError: the matrix is not float64.
        ValueError: as `numerical_rank`.
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

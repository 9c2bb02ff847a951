"""Losses that see a row of n scores only through a = z_c, q = sum_k z_k^2 and s = sum_k z_k.

Whatever has this form trains the output layer of `factored.py` at a cost that n does not enter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

# The bracket is at most max(1, xi / 3) wide; what 12 halvings leave of it, 3 of Newton's steps turn
# into rounding error.
HALVINGS = 12
NEWTON_STEPS = 3


def shared_bouchard_optimum(mean: Tensor, variance: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The xi and alpha at which the bound of `shared_bouchard_bound` is smallest.

    With t = tanh(xi/2) and kappa = (n - 2)/n, xi > log(n - 1) is the one root of
    xi^2 (1 - kappa^2/t^2) = variance, found by bisection and Newton's method, and
    alpha = mean + kappa xi / t. Without gradients: `shared_bouchard_bound` needs none of them.

    Args:
        mean, variance: of the n scores of each row, population variance; any shape.
        n: number of scores, at least 2.

    Returns:
        xi and alpha, shape and dtype of mean.
    """
    with torch.no_grad():
        kappa = (n - 2) / n
        low = torch.full_like(mean, math.log(n - 1))
        above = math.log(n - 1) + 1
        # the factor of xi^2 grows with xi, so that beyond `above` it is at least this
        least = 1 - (kappa / math.tanh(above / 2)) ** 2
        xi = high = (variance / least).sqrt().clamp(min=above)
        for _ in range(HALVINGS):
            xi = (low + high) / 2
            short = _excess(xi, variance, n)[0] < 0
            low, high = torch.where(short, xi, low), torch.where(short, high, xi)
        for _ in range(NEWTON_STEPS):
            value, slope = _excess(xi, variance, n)
            xi = (xi - value / slope).clamp(low, high)
        return xi, mean + kappa / (4 * _curvature(xi))


def _excess(xi: Tensor, variance: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """xi^2 (1 - kappa^2/t^2) - variance with t = tanh(xi/2), and its derivative."""
    kappa = (n - 2) / n
    t = torch.tanh(xi / 2)
    # t - kappa without the cancellation of two numbers close to 1
    gap = 2 / n - 2 * torch.sigmoid(-xi)
    factor = gap * (t + kappa) / t.square()
    slope = 2 * xi * factor + (xi * kappa).square() * (1 - t.square()) / t**3
    return xi.square() * factor - variance, slope


def _curvature(xi: Tensor) -> Tensor:
    """lambda(xi) = tanh(xi/2) / (4 xi), 1/8 at xi = 0."""
    safe = xi.masked_fill(xi == 0, 1.0)
    return (torch.tanh(safe / 2) / (4 * safe)).masked_fill(xi == 0, 0.125)


def shared_bouchard_bound(mean: Tensor, variance: Tensor, n: int) -> Tensor:
    """The least B >= log sum_k e^{z_k} of Bouchard's family with one xi for all classes.

    B = min over alpha, xi of
    alpha + sum_k [(z_k - alpha - xi)/2 + lambda(xi)((z_k - alpha)^2 - xi^2) + log(1 + e^xi)],
    lambda(xi) = tanh(xi/2)/(4 xi). It depends on mean and variance alone, and at the optimum
    dB = d mean + n lambda(xi) d variance (envelope theorem), which is what autograd gives; second
    derivatives leave out how xi moves. The gap to log-sum-exp is (n - 1) log(n/(n - 1)) for equal
    scores and grows fast: 89 at n = 10^4 and unit variance.

    Source: Bouchard 2007; with one xi: de Brebisson & Vincent 2016.

    Args:
        mean, variance: of the n scores of each row, population variance; any shape.
        n: number of scores, at least 1; for n = 1 the bound is the score.

    Returns:
        B, shape and dtype of mean.
    """
    if n == 1:
        return mean
    xi, _ = shared_bouchard_optimum(mean, variance, n)
    curvature = _curvature(xi)
    tail = 2 * torch.sigmoid(-xi)  # 1 - tanh(xi/2)
    # alpha put in; everything in the brackets is of the order of 1/n, and nothing cancels
    constant = F.softplus(-xi) + xi * tail / 4 + (4 * (n - 1) / n**2 - tail) / (16 * curvature)
    return mean + n * (curvature * variance + constant)


def _spherical(a: Tensor, q: Tensor, s: Tensor, n: int, eps: float) -> Tensor:
    """log sum_k (z_k^2 + eps) - log(a^2 + eps)."""
    return (q.clamp(min=0) + n * eps).log() - (a.square() + eps).log()


def _taylor(a: Tensor, q: Tensor, s: Tensor, n: int, eps: float) -> Tensor:
    """log sum_k (1 + (z_k + 1)^2)/2 - log (1 + (a + 1)^2)/2."""
    return (q + 2 * s + 2 * n).clamp(min=n).log() - torch.log1p((a + 1).square())


def _mse(a: Tensor, q: Tensor, s: Tensor, n: int, eps: float) -> Tensor:
    """||z - onehot_c||^2 / 2."""
    return (q - 2 * a + 1) / 2


def _bouchard(a: Tensor, q: Tensor, s: Tensor, n: int, eps: float) -> Tensor:
    """B - a."""
    mean = s / n
    return shared_bouchard_bound(mean, (q / n - mean.square()).clamp(min=0), n) - a


@dataclass(frozen=True)
class QuadraticLoss:
    """One loss of the family.

    Attributes:
        of: (a, q, s, n, eps) -> loss of each row. Rounding can make q, or a sum of squares,
            slightly too small: each keeps to the values that exact arithmetic could give.
        mapping: the registry's name of the p that the loss is a likelihood of, or bounds; None if
            there is none.
    """

    of: Callable[[Tensor, Tensor, Tensor, int, float], Tensor]
    mapping: str | None


LOSSES = {
    "spherical": QuadraticLoss(_spherical, "spherical-softmax"),
    "taylor": QuadraticLoss(_taylor, "taylor-softmax"),
    "mse": QuadraticLoss(_mse, None),
    "bouchard": QuadraticLoss(_bouchard, "softmax"),
}

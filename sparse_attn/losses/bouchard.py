"""Bouchard's upper bounds of log-sum-exp, and a loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.losses.row_blocks import (
    check_scores,
    labelled_rows,
    spoiled,
    top_score,
    valid_scores,
)
from sparse_attn.mappings.base import INF, Value, aligned

# The bracket of the shared xi is at most max(1, xi / 3) wide. The bracket of alpha may be as wide
# as the range of scores, but then the sum to solve is flat. After 12 halvings, 3 Newton steps reach
# rounding error.
HALVINGS = 12
NEWTON_STEPS = 3

SHARED, PER_CLASS = "shared", "per_class"


def bouchard_bound(
    scores: Tensor,
    xi: str | Value = SHARED,
    alpha: Value | None = None,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """B = alpha + sum_k [(x_k - xi_k)/2 + lambda(xi_k)(x_k^2 - xi_k^2) + log(1 + e^{xi_k})].

    With x = z - alpha and lambda(xi) = tanh(xi/2)/(4 xi). B >= log sum_k e^{z_k} for every alpha
    and xi; by default they minimise B in each row:

        xi="shared"     one xi for all classes, xi^2 = mean_k x_k^2; B then depends only on the
                        mean and the variance of z
        xi="per_class"  xi_k = |x_k|, B = alpha + sum_k log(1 + e^{x_k}), the least of the family
        alpha=None      for fixed xi: alpha = ((n - 2)/4 + sum lambda z) / sum lambda

    The gradient at an optimum is exact (envelope theorem); second derivatives ignore how the
    optimum moves.
    Source: Bouchard 2007; with one xi: de Brebisson & Vincent 2016, no table.

    Args:
        scores: z, (..., n), floating point. -inf acts as a mask; NaN or +inf gives NaN.
        xi: "shared", "per_class", or fixed: in [0, inf), a float or a tensor broadcastable to
            scores, with its gradient.
        alpha: None, or fixed: a float or a tensor broadcastable to the rows, with its gradient.
        mask: boolean, True = takes part, broadcastable to scores.

    Returns:
        (...), in at least float32; 0 where nothing takes part, inf where the squares of the scores
        overflow.

    Raises:
        ValueError: mismatched shapes, an unknown word for xi; a negative xi, which in a tensor is
            checked on the CPU only (elsewhere it acts as |xi|).
        TypeError: scores not floating point, mask not boolean.
    """
    check_scores(scores)
    present = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        present = aligned("mask", mask, scores)
    z, valid = valid_scores(scores, present)
    worked = valid.any(-1)
    base, x = _centred(z, valid, alpha)
    bound = _bound(x, valid | ~worked.unsqueeze(-1), xi, alpha is None) + base.squeeze(-1)
    return (_overflow(bound, xi, alpha) + spoiled(z)).masked_fill(~worked, 0.0)


def bouchard_loss(
    scores: Tensor,
    target: Tensor,
    xi: str | Value = SHARED,
    alpha: Value | None = None,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """L = B - <eta, z>, B of `bouchard_bound`: at least -<eta, log softmax(z)>.

    Source: de Brebisson & Vincent 2016, no table.

    Args:
        scores, target, mask, reduction: as `sparsemax_loss`, as are returns and errors.
        xi, alpha: as `bouchard_bound`, with its errors.

    Raises:
        ValueError: on the CPU also a row without labels.
    """
    rows = labelled_rows(scores, target, mask, distribution=True)
    _, x = _centred(rows.scores, rows.valid & rows.worked.unsqueeze(-1), alpha)
    bound = _bound(x, rows.valid, xi, alpha is None)
    return rows.reduced(_overflow(bound - rows.labels.dot(x), xi, alpha), reduction)


def _centred(z: Tensor, valid: Tensor, alpha: Value | None) -> tuple[Tensor, Tensor]:
    """Return alpha, or max z without gradient, (..., 1), and z minus it, 0 where not valid.

    The bound shifts with z and alpha, so differences keep their digits.
    """
    if alpha is None:
        base = top_score(z, valid)
    else:
        base = _fixed("alpha", alpha, -INF, z[..., 0]).unsqueeze(-1)
    return base, (z - base).masked_fill(~valid, 0.0)


def _overflow(losses: Tensor, *given: str | Value | None) -> Tensor:
    """Replace NaN from overflowing squares of finite scores by inf."""
    overflows = losses.isnan()
    for value in given:
        if isinstance(value, Tensor):
            overflows = overflows & ~value.isnan().any()
    return losses.masked_fill(overflows, INF)


def _bound(x: Tensor, valid: Tensor, xi: str | Value, free: bool) -> Tensor:
    """B of scores x, (..., n) -> (...), at alpha = 0, or at the best alpha if free."""
    if not isinstance(xi, str):
        return _formula(x, valid, _fixed("xi", xi, 0.0, x), free)
    if xi == SHARED:
        return _least_shared(x, valid, free)
    if xi != PER_CLASS:
        raise ValueError(f"xi={xi!r}: expected {SHARED!r}, {PER_CLASS!r}, or a number in [0, inf)")
    alpha = _per_class_alpha(x.detach(), valid) if free else torch.zeros_like(x[..., :1])
    softplus = torch.logaddexp(x - alpha, torch.zeros_like(x))
    return softplus.masked_fill(~valid, 0.0).sum(-1) + alpha.squeeze(-1)


def _fixed(name: str, value: Value, low: float, like: Tensor) -> Tensor:
    """Return a fixed value of the caller in the shape and dtype of `like`."""
    given = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)
    if given.device.type == "cpu":
        fits = given.isfinite() & (given >= low)
        if not fits.all():
            raise ValueError(
                f"{name}={given[~fits][0].item()}: expected a finite number"
                + ("" if low == -INF else f", at least {low:g}")
            )
    try:
        most = torch.finfo(like.dtype).max
        return given.to(like).clamp(-most, most).broadcast_to(like.shape)
    except RuntimeError:
        raise ValueError(
            f"{name}: shape {tuple(given.shape)} does not broadcast to {tuple(like.shape)}"
        ) from None


def _least_shared(x: Tensor, valid: Tensor, free: bool) -> Tensor:
    """Compute the bound at the best shared xi."""
    count = valid.sum(-1)
    if not free:
        xi = (x.detach().square().sum(-1) / count).sqrt()
        return _formula(x, valid, xi.unsqueeze(-1).expand_as(x), free)
    mean = x.sum(-1) / count
    away = (x - mean.unsqueeze(-1)).masked_fill(~valid, 0.0)
    return shared_bouchard_bound(mean, away.square().sum(-1) / count, count)


def _formula(x: Tensor, valid: Tensor, xi: Tensor, free: bool) -> Tensor:
    """Compute the bound at a given xi, (..., n)."""
    xi = xi.masked_fill(~valid, 0.0)
    curvature = _curvature(xi)
    alpha = torch.zeros_like(x[..., :1])
    if free:
        weight = curvature.detach().masked_fill(~valid, 0.0)
        count = valid.sum(-1, keepdim=True).to(x)
        pull = (count - 2) / 4 + (weight * x.detach()).sum(-1, keepdim=True)
        alpha = pull / weight.sum(-1, keepdim=True)
    # log(1 + e^xi) - xi/2 - lambda xi^2 without its large terms, which cancel
    constant = F.softplus(-xi) + xi / 2 - xi * torch.tanh(xi / 2) / 4
    away = x - alpha
    terms = away * (1 / 2 + curvature * away) + constant
    return terms.masked_fill(~valid, 0.0).sum(-1) + alpha.squeeze(-1)


def _per_class_alpha(x: Tensor, valid: Tensor) -> Tensor:
    """Solve sum_k sigma(x_k - alpha) = 1 for the best alpha, for rows with maximum 0.

    For the two largest scores, alpha is halfway between them; beyond log(n - 1) above the top the
    sum is below 1. With one class B decreases with alpha; at -40 it is x.
    """
    second = F.pad(x.masked_fill(~valid, -INF), (0, 1), value=-INF).topk(2, -1).values[..., 1:]
    low = (second / 2).where(second != -INF, -40.0)
    high = (valid.sum(-1, keepdim=True) - 1).clamp(min=1).to(x).log()
    alpha = high
    for step in range(HALVINGS + NEWTON_STEPS):
        share = torch.sigmoid(x - alpha).masked_fill(~valid, 0.0)
        excess = share.sum(-1, keepdim=True) - 1
        low, high = alpha.where(excess > 0, low), alpha.where(excess <= 0, high)
        slope = (share * (1 - share)).sum(-1, keepdim=True)
        newton = (alpha + excess / slope.clamp(min=torch.finfo(x.dtype).tiny)).clamp(low, high)
        alpha = (low + high) / 2 if step < HALVINGS else newton
    return alpha


def shared_bouchard_bound(mean: Tensor, variance: Tensor, n: int | Tensor) -> Tensor:
    """The least B with one xi for all classes, from mean and variance of the scores.

    At the optimum dB = d mean + n lambda(xi) d variance (envelope theorem), as autograd gives;
    second derivatives ignore how xi moves. The gap to log-sum-exp is (n - 1) log(n/(n - 1)) for
    equal scores and grows fast: 89 at n = 10^4 and unit variance.

    Source: Bouchard 2007; with one xi: de Brebisson & Vincent 2016, no table.

    Args:
        mean, variance: mean and population variance of the n scores of each row; any shape.
        n: number of scores, at least 1, a number or the shape of mean; for n = 1 the bound is the
            score.

    Returns:
        B, shape and dtype of mean.
    """
    n = torch.as_tensor(n, dtype=mean.dtype, device=mean.device)
    several = n.clamp(min=2)
    xi, _ = shared_bouchard_optimum(mean, variance, several)
    curvature = _curvature(xi)
    tail = 2 * torch.sigmoid(-xi)  # 1 - tanh(xi/2)
    # with alpha inserted; all terms in the brackets are of order 1/n, and nothing cancels
    constant = (
        F.softplus(-xi)
        + xi * tail / 4
        + (4 * (several - 1) / several.square() - tail) / (16 * curvature)
    )
    return (mean + several * (curvature * variance + constant)).where(n > 1, mean)


def shared_bouchard_optimum(
    mean: Tensor, variance: Tensor, n: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Return the xi and alpha that minimise `shared_bouchard_bound`.

    With t = tanh(xi/2) and kappa = (n - 2)/n, xi > log(n - 1) is the one root of
    xi^2 (1 - kappa^2/t^2) = variance, found by bisection and Newton's method, and
    alpha = mean + kappa xi / t. Computed without gradients, which `shared_bouchard_bound` does not
    need.

    Args:
        mean, variance: mean and population variance of the n scores of each row; any shape.
        n: number of scores, at least 2, a number or the shape of mean.

    Returns:
        xi and alpha, shape and dtype of mean.
    """
    with torch.no_grad():
        n = torch.as_tensor(n, dtype=mean.dtype, device=mean.device)
        kappa = (n - 2) / n
        low = (n - 1).log().expand_as(mean)
        above = low + 1
        # the factor of xi^2 grows with xi, so beyond `above` it is at least this
        least = _excess(above, torch.zeros_like(mean), n)[0] / above.square()
        xi = high = torch.maximum((variance / least).sqrt(), above)
        for _ in range(HALVINGS):
            xi = (low + high) / 2
            short = _excess(xi, variance, n)[0] < 0
            low, high = torch.where(short, xi, low), torch.where(short, high, xi)
        for _ in range(NEWTON_STEPS):
            value, slope = _excess(xi, variance, n)
            xi = (xi - value / slope).clamp(low, high)
        return xi, mean + kappa / (4 * _curvature(xi))


def _excess(xi: Tensor, variance: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """xi^2 (1 - kappa^2/t^2) - variance with t = tanh(xi/2), and its derivative."""
    kappa = (n - 2) / n
    t = torch.tanh(xi / 2)
    # t - kappa without cancellation near 1
    gap = 2 / n - 2 * torch.sigmoid(-xi)
    factor = gap * (t + kappa) / t.square()
    slope = 2 * xi * factor + (xi * kappa).square() * (1 - t.square()) / t**3
    return xi.square() * factor - variance, slope


def _curvature(xi: Tensor) -> Tensor:
    """lambda(xi) = tanh(xi/2) / (4 xi), which is even; 1/8 at xi = 0."""
    small = xi.abs() < 0.03
    y = xi.masked_fill(~small, 0.0).square()
    # the derivative of the quotient would divide by xi^2; the series is truncated at float64
    # precision
    series = 1 / 8 - y * (1 / 96 - y * (1 / 960 - y * 17 / 161280))
    far = xi.masked_fill(small, 1.0)
    return torch.where(small, series, torch.tanh(far / 2) / 4 / far)

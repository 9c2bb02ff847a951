"""Output biases that start a head at the unigram distribution of its corpus."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparse_attn.heads.linear import LinearHead
from sparse_attn.heads.mixture import MixtureHead
from sparse_attn.mappings import Mapping

WIDEST = 1e6  # biases are searched for in [-WIDEST, WIDEST]
HALVINGS = 80  # halvings of that interval, to the rounding of float64
NEAR = 1e-6  # nats


@torch.no_grad()
def match_prior(head: LinearHead | MixtureHead, counts: Tensor, smoothing: float = 0.5) -> None:
    """Set the bias b so that map(b) is the unigram distribution: log g(b_k) = log prior_k + C.

    At W h = 0, near the start of training, the head then predicts word frequencies. C is free: the
    most frequent word gets the score 0. The g of spherical, Taylor and abs increases only to the
    right of its minimum, where it has no slope; there the rarest word gets the score at which g is
    twice its minimum (or 1 beyond a minimum of 0), and all others lie above. The minimum is
    searched on a grid that is finest at 0; far from 0 the rarest word lies further above it. Scores
    are found by bisection on the mapping with its current parameters.

    Args:
        head: a head with a bias and a pointwise mapping whose g increases, at least right of its
            minimum.
        counts: number of occurrences of each word, [vocab], non-negative. A word that never occurs
            counts as `smoothing` occurrences; if all occur, the prior is the empirical one.
        smoothing: occurrences, above 0.

    Raises:
        TypeError: another kind of head.
        ValueError: no bias, a mapping that is not pointwise or whose g decreases, counts of the
            wrong shape, negative or not finite, smoothing not above 0, or a prior that the mapping
            cannot reach, such as with a bounded g.

    Source: de Brebisson & Vincent 2016, who start from zero output weights, where even mappings
        learn nothing without such biases; the formula is derived.
    """
    if not isinstance(head, LinearHead | MixtureHead):
        raise TypeError(
            f"head: expected a LinearHead or a MixtureHead, got {type(head).__name__}, "
            "which has no single bias over all words"
        )
    if head.bias is None:
        raise ValueError("head: it has no bias to set; create it with bias=True")
    if head.mapping.spec.log_g is None:
        raise ValueError(
            f"mapping={head.mapping.name}: expected a pointwise mapping, p = g(z) / sum g(z)"
        )
    occurrences = _smoothed(counts, head.vocab, smoothing).to(head.bias.device)
    distinct, words = occurrences.unique(return_inverse=True)
    head.bias.copy_(_scores(head.mapping, distinct.log())[words])


def _smoothed(counts: Tensor, vocab: int, smoothing: float) -> Tensor:
    """Float64 counts with the smallest one above 0."""
    if counts.shape != (vocab,):
        raise ValueError(f"counts: expected shape ({vocab},), got {tuple(counts.shape)}")
    if not (counts.isfinite() & (counts >= 0)).all():
        raise ValueError("counts: expected finite numbers >= 0")
    if not 0 < smoothing < torch.inf:
        raise ValueError(f"smoothing={smoothing}: expected a number in (0, inf)")
    return torch.where(counts > 0, counts.double(), smoothing)


def _scores(mapping: Mapping, log_counts: Tensor) -> Tensor:
    """Solve log g(z) = log_counts + C for z, for increasing log_counts [n]."""
    anchor, rarest = _anchor(mapping, log_counts.device)
    wanted = log_counts - log_counts[0 if rarest else -1]
    low, high = (anchor, WIDEST) if rarest else (-WIDEST, anchor)
    found = _solve(mapping, anchor, wanted, low, high)
    missed = (_rise(mapping, anchor, found) - wanted).abs().max().item()
    if not missed < NEAR:
        raise ValueError(
            f"counts: out of reach of {mapping.name} by {missed:.3g} nats; the rarest word is "
            f"exp({log_counts[0] - log_counts[-1]:.3g}) times as frequent as the most frequent: "
            "use more smoothing, or a mapping whose g spans more"
        )
    return found


def _anchor(mapping: Mapping, device: torch.device) -> tuple[float, bool]:
    """Return the score of one word, and whether it is the rarest or the most frequent."""
    # steps of 0.015 around 0, and of 1.5 % far out
    grid = (torch.arange(-1000, 1001, device=device).double() / 1000 * math.asinh(WIDEST)).sinh()
    log_g = mapping.log(grid)  # up to a constant
    last = len(grid) - 1 - int(log_g.flip(0).argmin())
    rises = log_g[last:].diff()
    # neither NaN nor a single step counts as rising: it may start at 0 or end where log g is cut
    # off
    if not ((rises > -NEAR).all() and (rises[1:] > NEAR).any()):
        raise ValueError(
            f"mapping={mapping.name}: its g does not increase on [-{WIDEST:g}, {WIDEST:g}], nor "
            "to the right of its minimum there, so no scores match the counts"
        )
    least, lowest = log_g[last].item(), grid[last].item()
    if least == -math.inf:
        return lowest + 1, True
    if log_g[0] <= least + NEAR:
        return 0.0, False
    doubled = grid.new_tensor([math.log(2)])
    return _solve(mapping, lowest, doubled, lowest, WIDEST).item(), True


def _solve(mapping: Mapping, anchor: float, wanted: Tensor, low: float, high: float) -> Tensor:
    """Solve log g(z) - log g(anchor) = wanted [n] for z in [low, high], where g rises."""
    lows, highs = torch.full_like(wanted, low), torch.full_like(wanted, high)
    for _ in range(HALVINGS):
        middle = (lows + highs) / 2
        above = _rise(mapping, anchor, middle) > wanted
        lows, highs = torch.where(above, lows, middle), torch.where(above, middle, highs)
    return highs


def _rise(mapping: Mapping, anchor: float, z: Tensor) -> Tensor:
    """Return log g(z) - log g(anchor) for z [n], from rows of the two scores."""
    log_p = mapping.log(torch.stack([z, torch.full_like(z, anchor)], -1))
    return log_p[:, 0] - log_p[:, 1]

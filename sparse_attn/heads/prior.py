"""Output biases with which a head starts at the unigram distribution of its corpus."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_attn.heads.linear import LinearHead
from sparse_attn.heads.mixture import MixtureHead
from sparse_attn.mappings import Mapping

WIDEST = 1e6  # biases are looked for in [-WIDEST, WIDEST]
HALVINGS = 80  # of that interval: down to the rounding of float64
NEAR = 1e-6  # nats


@torch.no_grad()
def match_prior(head: LinearHead | MixtureHead, counts: Tensor, smoothing: float = 0.5) -> None:
    """Set the bias b to what makes map(b) the unigram distribution: log g(b_k) = log prior_k + C.

    At W h = 0, where training about starts, the head then predicts each word by its frequency. C is
    free: the most frequent word gets the score 0. The g of spherical, Taylor and abs rise on one
    side of their lowest point only, and have no slope at it; there the rarest word gets the score
    on that side at which log g is steepest, and all others lie above. The scores are found by
    bisection on the mapping with its parameters as they are now.

    Args:
        head: with a bias, and a pointwise mapping whose g increases, but for those three.
        counts: how often each word occurs, [vocab], non-negative. A word that never occurs counts
            as `smoothing` occurrences; where all occur, the prior is the empirical one.
        smoothing: above 0, in occurrences.

    Raises:
        ValueError: no bias, a mapping that is not pointwise, counts of another shape, negative or
            not finite, smoothing not above 0, or a prior out of the mapping's reach, as where a
            bounded g spans less than the prior does.

    Source: de Brebisson & Vincent 2016, who start from zero output weights, where even mappings
    learn nothing without such biases; the formula is derived.
    """
    if head.bias is None:
        raise ValueError("head: it has no bias to set; make it with bias=True")
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
        raise ValueError("counts: expected finite numbers from 0 up")
    if not 0 < smoothing < torch.inf:
        raise ValueError(f"smoothing={smoothing}: expected a number in (0, inf)")
    return torch.where(counts > 0, counts.double(), smoothing)


def _scores(mapping: Mapping, log_counts: Tensor) -> Tensor:
    """The z with log g(z) = log_counts + C, for increasing log_counts [n]."""
    lowest = _lowest(mapping)
    anchor = 0.0 if lowest is None else lowest
    wanted = log_counts - (log_counts[-1] if lowest is None else log_counts[0])

    def rise(z: Tensor) -> Tensor:
        """log g(z) - log g(anchor), by a row of these two."""
        log_p = mapping.log(torch.stack([z, torch.full_like(z, anchor)], -1))
        return log_p[:, 0] - log_p[:, 1]

    low = torch.full_like(wanted, -WIDEST if lowest is None else lowest)
    high = torch.full_like(wanted, 0.0 if lowest is None else WIDEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = rise(middle) > wanted
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    missed = (rise(high) - wanted).abs().max().item()
    if not missed < NEAR:
        raise ValueError(
            f"counts: out of reach of {mapping.name} by {missed:.3g} nats; the rarest word is "
            f"exp({log_counts[0] - log_counts[-1]:.3g}) times as frequent as the most frequent: "
            "use more smoothing, or a mapping whose g spans more"
        )
    return high


def _lowest(mapping: Mapping) -> float | None:
    """The score of the rarest word where g does not rise everywhere: log g is steepest there."""
    if mapping.name == "spherical-softmax":
        # g = z^2 + eps; at eps = 0 all scales are alike
        return float(mapping.value("eps")) ** 0.5 or 1.0
    return {"taylor-softmax": 0.0, "softmax-abs": 1.0}.get(mapping.name)

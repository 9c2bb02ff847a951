"""What the searches of a block of 64 rows take among independent Gaussian scores.

Replicas of kernels/triton/passes.py and search.py in numpy; no sink, no ties.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SIDE = 64
SETTLED = 1e-6


class Search(NamedTuple):
    """Passes by name, Newton steps over a tile's maxima, and the share of tiles that are listed."""

    passes: dict[str, float]
    candidates: float
    live: float


def _rows(length: int) -> list[np.ndarray]:
    """Blocks of rows at an eighth, three, five and seven of a causal length, or one whole one."""
    if length <= 512:
        return [np.random.default_rng(0).standard_normal((SIDE, length))]
    places = [length * odd // 8 // SIDE * SIDE for odd in (1, 3, 5, 7)]
    return [np.random.default_rng(place).standard_normal((SIDE, place)) for place in places]


def entmax_search(length: int, alpha: float) -> Search:
    """Newton's method for tau from below, over the maxima and then over the row."""
    newton, listed, tiles, candidates = 0.0, 0, 0, 0
    blocks = _rows(length)
    for scores in blocks:
        x = (scores - scores.max(1, keepdims=True)) * (alpha - 1)
        tau = np.full((SIDE, 1), -1.0)
        folded = x.reshape(SIDE, -1, SIDE)
        maxima = folded.max(1) if length > 128 else x
        go = True
        while go:
            move = _step(maxima, tau, alpha)
            tau, candidates = tau + move, candidates + 1
            go = np.abs(move).max() > SETTLED
        alive = (folded.max(2) > tau).any(0)
        listed, tiles = listed + int(alive.sum()), tiles + alive.size
        if length > 128:
            move = _step(x, tau, alpha)
            while np.abs(move).max() > SETTLED:
                tau, newton = tau + move, newton + 1
                move = _step(x, tau, alpha)
    return Search({"threshold": newton / len(blocks)}, candidates / len(blocks), listed / tiles)


def _step(x: np.ndarray, tau: np.ndarray, alpha: float) -> np.ndarray:
    base = np.maximum(x - tau, 0.0)
    power = 1 / (alpha - 1)
    total = (base**power).sum(1, keepdims=True)
    slope = (power * base ** (power - 1) * (base > 0)).sum(1, keepdims=True)
    # of (total ^ (1 / power)) - 1
    moved: np.ndarray = (total ** (1 / power) - 1) * power * total ** (1 - 1 / power) / slope
    return moved


def quantile_search(length: int, r: float = 0.15) -> Search:
    """Counts up to two bounds per pass until at most two scores are between in every row."""
    blocks = _rows(length)
    counts = [_counted(np.sort(x, axis=1), r) for x in blocks]
    return Search({"count": float(np.mean(counts)), "snap": 2.0}, 0, 1.0)


def _counted(x: np.ndarray, r: float) -> int:
    n = x.shape[1]
    need = np.full(SIDE, np.floor(r * (n - 1)) + 1)
    low, high = x[:, 0].copy(), x[:, -1].copy()
    under_low, under_high = np.ones(SIDE), np.full(SIDE, float(n))
    z = 4.91 * (r**0.14 - (1 - r) ** 0.14)
    first, second = (x.mean(1) + (z + shift) * x.std(1) for shift in (-0.3, 0.3))
    for step in range(1, 13):
        below, within = ((x <= bound[:, None]).sum(1) for bound in (first, second))
        narrow = (first > low) & (first <= second) & (second < high)
        by_first, by_second = narrow & (below <= need), narrow & (within <= need)
        reach_first, reach_second = narrow & (below >= need), narrow & (within >= need)
        low = np.where(by_second, second, np.where(by_first, first, low))
        under_low = np.where(by_second, within, np.where(by_first, below, under_low))
        high = np.where(reach_first, first, np.where(reach_second, second, high))
        under_high = np.where(reach_first, below, np.where(reach_second, within, under_high))
        low = np.minimum(low, high)
        between = np.maximum(under_high - under_low, 1.0)
        place, width = (need - under_low + 0.5) / (between + 1), 0.8 / np.sqrt(between)
        many = between > 24
        first = low + np.where(many, np.maximum(place - width, 0.02), 1 / 3) * (high - low)
        second = low + np.where(many, np.minimum(place + width, 0.98), 2 / 3) * (high - low)
        if not (narrow & (low < high) & (under_high - under_low > 2)).any():
            return step
    return 12

"""Statistics over seeds: mean and standard deviation, paired differences and their power."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.stats

from sparse_attn.reports import text

LEVEL = 0.05
POWER = 0.8
# verdict by side of the difference; None without an interval, such as for one pair of runs
VERDICTS = {1: "better", -1: "worse", 0: "not significant", None: "not judged"}


class Estimate(NamedTuple):
    """Mean over n seeds and sample standard deviation (n - 1); None for one seed or infinities."""

    mean: float
    sd: float | None
    n: int

    def text(self, pattern: str) -> str:
        """`1.23 ± 0.04`, or one number if the seeds agree or there is one.

        Args:
            pattern: `str.format` pattern, such as "{:.2f}".
        """
        mean = pattern.format(self.mean)
        return f"{mean} ± {pattern.format(self.sd)}" if self.sd else mean


class Difference(NamedTuple):
    """Mean over n pairs with the same seed, its 95 % interval and p; None where not known.

    `detectable` comes from `detectable_effect`.
    """

    value: float
    interval: tuple[float, float] | None
    n: int
    p: float | None = None
    detectable: float | None = None

    @property
    def low(self) -> float:
        """Lower end of the interval; NaN without one."""
        return math.nan if self.interval is None else self.interval[0]

    @property
    def high(self) -> float:
        """Upper end of the interval; NaN without one."""
        return math.nan if self.interval is None else self.interval[1]

    @property
    def half(self) -> float:
        """Half the width of the interval; NaN without one."""
        return (self.high - self.low) / 2

    def scaled(self, factor: float) -> Difference:
        """Return the difference in another unit."""
        ends = self.interval and (factor * self.interval[0], factor * self.interval[1])
        effect = None if self.detectable is None else factor * self.detectable
        return self._replace(value=factor * self.value, interval=ends, detectable=effect)

    @property
    def side(self) -> int:
        """1 if the interval is above 0, -1 if below, else 0."""
        low, high = self.interval or (0, 0)
        return 1 if low > 0 else -1 if high < 0 else 0

    def verdict(self, better: int = 1, p: float | None = None) -> str:
        """Return one of `VERDICTS`; better or worse if the interval excludes 0 and p < 5 %.

        Args:
            better: 1 if more is better, else -1.
            p: Holm's p; None without a correction.
        """
        if self.interval is None:
            return VERDICTS[None]
        return VERDICTS[0 if p is not None and p >= LEVEL else better * self.side]

    def text(self, pattern: str) -> str:
        """`+0.12 [-0.34, +0.58]`; `pattern` as "{:+.2f}"."""
        value = text.rounded(self.value, pattern)
        if self.interval is None:
            return f"{value} (no interval)"
        low, high = (text.rounded(end, pattern) for end in self.interval)
        return f"{value} [{low}, {high}]"


def estimate(values: Iterable[float]) -> Estimate | None:
    """Estimate mean and standard deviation; None without a value."""
    found = list(values)
    if not found:
        return None
    known = len(found) > 1 and all(map(math.isfinite, found))
    return Estimate(mean(found), stdev(found) if known else None, len(found))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """ours - theirs over common seeds; None without common seeds or if a value is infinite.

    Interval: mean +- t(0.975, n - 1) sd / sqrt(n), Student's for paired differences.
    """
    pairs = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if not pairs or not all(map(math.isfinite, pairs)):
        return None
    n, value = len(pairs), mean(pairs)
    if n == 1:
        return Difference(value, None, n)
    half = float(scipy.stats.t.ppf(1 - LEVEL / 2, n - 1)) * stdev(pairs) / math.sqrt(n)
    interval = value - half, value + half
    return Difference(value, interval, n, paired_p(pairs), detectable_effect(pairs))


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p of a paired t-test; without spread 1 if all differences are 0, else 0."""
    if float(np.std(differences)) < 1e-12:
        return 0.0 if np.any(differences) else 1.0
    return float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)


def detectable_effect(differences: Sequence[float]) -> float | None:
    """delta with P(paired t-test at 5 % rejects | true difference delta) = 0.8, for n pairs.

    delta = effect size (Cohen's d, from the noncentral t) times the differences' standard
    deviation. None for fewer than two pairs or constant differences.
    """
    if len(differences) < 2:
        return None
    spread = float(np.std(differences, ddof=1))
    return None if spread < 1e-12 else _effect_size(len(differences)) * spread


@cache
def _effect_size(pairs: int) -> float:
    """Return the true mean, in standard deviations, that a paired t-test finds with `POWER`."""
    bound = scipy.stats.t.ppf(1 - LEVEL / 2, pairs - 1)

    def lacking(shift: float) -> float:
        # P(T > bound) + P(T < -bound); `cdf`, for the second, is NaN where it underflows
        tails = scipy.stats.nct.sf(bound, pairs - 1, [shift, -shift])
        return float(tails.sum() - POWER)

    # with two pairs, the most that there can be, the shift is 16.3
    return float(scipy.optimize.brentq(lacking, 0, 20, xtol=1e-12)) / math.sqrt(pairs)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """max over j <= i of min(1, (m - j + 1) p_(j)), p_(1) <= ... <= p_(m) (Holm 1979).

    None stays None and does not count towards m.
    """
    known = sorted(value for value in values if value is not None)
    corrected, highest = {}, 0.0
    for rank, value in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        corrected[value] = highest  # equal values get the same, because `highest` stays
    return [None if value is None else corrected[value] for value in values]

"""Statistics over seeds: mean and standard deviation, paired differences and their power."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import compress
from statistics import mean, median, stdev
from typing import NamedTuple

import numpy as np
import scipy.stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from pipeline.report import text

LEVEL = 0.05
POWER = 0.8


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

    `detectable` is `detectable_effect`'s.
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
        """The same in another unit."""
        ends = self.interval and (factor * self.interval[0], factor * self.interval[1])
        effect = None if self.detectable is None else factor * self.detectable
        return self._replace(value=factor * self.value, interval=ends, detectable=effect)

    @property
    def side(self) -> int:
        """1 if the interval is above 0, -1 if below, else 0."""
        low, high = self.interval or (0, 0)
        return 1 if low > 0 else -1 if high < 0 else 0

    def verdict(self, better: int, p: float | None = None) -> str:
        """`better`, `worse` or `not significant`; `one pair` without an interval.

        Significant if the interval leaves out 0 and `p` is below 5 %.

        Args:
            better: 1 if more is better, else -1.
            p: Holm's p; None if nothing was corrected.
        """
        if self.interval is None:
            return "one pair"
        if self.side == 0 or (p is not None and p >= LEVEL):
            return "not significant"
        return "better" if self.side == better else "worse"

    def text(self, pattern: str) -> str:
        """`+0.12 [-0.34, +0.58]`; `pattern` as "{:+.2f}"."""
        value = text.rounded(self.value, pattern)
        if self.interval is None:
            return f"{value} (no interval)"
        low, high = (text.rounded(end, pattern) for end in self.interval)
        return f"{value} [{low}, {high}]"


def estimate(values: Iterable[float]) -> Estimate | None:
    """None without a value."""
    found = list(values)
    if not found:
        return None
    known = len(found) > 1 and all(map(math.isfinite, found))
    return Estimate(mean(found), stdev(found) if known else None, len(found))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """ours - theirs over their common seeds; None without any, or if a value is infinite.

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
    test = {"alpha": LEVEL, "power": POWER, "alternative": "two-sided"}
    return float(TTestPower().solve_power(nobs=pairs, **test))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """max over j <= i of min(1, (m - j + 1) p_(j)), p_(1) <= ... <= p_(m) (Holm 1979).

    None stays None and does not count towards m.
    """
    known = [value for value in values if value is not None]
    corrected = iter(multipletests(known, method="holm")[1] if known else ())
    return [None if value is None else float(next(corrected)) for value in values]


def settled(values: Sequence[float | None]) -> list[bool]:
    """Which p are below 5 % after Holm's correction; None is not."""
    return [value is not None and value < LEVEL for value in holm(values)]


def verdict(
    found: Mapping[str, Difference], base: str, pattern: str, unit: str, better: int
) -> str:
    """Which mappings differ from the baseline, and how small a difference would have shown.

    Args:
        found: differences from the baseline `base`, by mapping.
        pattern: as in `Difference.text`.
        unit: of the differences, such as points.
        better: 1 if more is better, else -1.
    """
    sides = (("Better than", better), ("Worse than", -better), ("No difference shown from", 0))
    lines = []
    for said, side in sides:
        those = [
            f"{n} {d.text(pattern)}" for n, d in found.items() if d.interval and d.side == side
        ]
        lines += [f"{said} {base}: {text.listing(those)}."] if those else []
    if lines:
        sure = list(compress(found, settled([difference.p for difference in found.values()])))
        told = [
            f"{word}: {text.listing(names)}"
            for word, side in (("better", better), ("worse", -better))
            if (names := [name for name in sure if found[name].side == side])
        ]
        lines.append(
            "Each by its own 95 % interval; after Holm's correction "
            f"{'; '.join(told) or 'none is told apart'}."
        )
    alone = [name for name, difference in found.items() if difference.interval is None]
    lines += [f"One pair of runs, which settles nothing: {text.listing(alone)}."] if alone else []
    return " ".join([*lines, *reach(found.values(), pattern.replace("+", ""), unit)])


def tally(found: Iterable[Difference | None], base: str, better: int = 1) -> list[str]:
    """How many differences from the baseline are better and worse, as a sentence.

    Args:
        better: 1 if more is better, else -1.
    """
    sides = Counter(better * d.side for d in found if d and d.interval)
    return [
        f"{text.counted(sides.total(), 'difference')} from {base}: {sides[1]} better, {sides[-1]} "
        f"worse, {sides[0]} not told apart, each by its own 95 % interval."
    ] * bool(sides)


def flips(found: Iterable[tuple[str, str, str, int]]) -> list[str]:
    """Where metrics contradict each other: `NAME: better by A, worse by B (TASK and TASK).`

    Args:
        found: name, task, metric and side, 1 for better and -1 for worse.
    """
    by_cell: dict[tuple[str, str], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, task, metric, side in found:
        if side:
            by_cell[name, task][side].append(metric)
    turned = defaultdict(list)
    for (name, task), metrics in by_cell.items():
        if len(metrics) == 2:
            said = f"better by {text.listing(metrics[1])}, worse by {text.listing(metrics[-1])}"
            turned[f"{name}: {said}"].append(task)
    return [f"{said} ({text.listing(tasks)})." for said, tasks in turned.items()]


def reach(found: Iterable[Difference], pattern: str, unit: str) -> list[str]:
    """A sentence on the detectable effects, if there are any."""
    known = [(d.n, d.detectable) for d in found if d.detectable]
    if not known:
        return []
    pairs = text.listing([str(n) for n in sorted({n for n, _ in known})])
    usual, most = (pattern.format(of(effect for _, effect in known)) for of in (median, max))
    span = f"{usual} {unit}"
    if len(known) > 1:
        span += f" (median; {most} at most)"
    return [
        f"With {pairs} pairs of seeds a paired t-test has {100 * POWER:g} % power to detect a true "
        f"difference of {span}."
    ]

"""Number formats of reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MISSING = "n/a"
NOTHING = "-"


def score(value: float | None) -> str:
    """Format a share as a percentage with two decimals."""
    return MISSING if value is None else f"{100 * value:.2f}"


def rounded(value: float, pattern: str) -> str:
    """Format a number by a `str.format` pattern, without -0."""
    text = pattern.format(value)
    return pattern.format(0.0) if float(text) == 0 else text


def interval(ends: tuple[float, float] | None, pattern: str) -> str:
    """Format both ends by a `str.format` pattern: `[-1.20, +0.30]`."""
    if ends is None:
        return MISSING
    low, high = (rounded(end, pattern) for end in ends)
    return f"[{low}, {high}]"


def probability(value: float | None) -> str:
    """Format a p-value with three decimals."""
    if value is None:
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def number(value: float | None, pattern: str = "{:,.1f}") -> str:
    return MISSING if value is None else pattern.format(value)


def plain(value: Any) -> str:
    """Format a config number in short form: 5e-05, 0.2, 64."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def listing(items: Sequence[str], last: str = "and") -> str:
    """List words as in "a, b and c"."""
    return f" {last} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def counted(amount: int, noun: str) -> str:
    """Format a count and its noun: 1 run, 2,000 runs."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def unbroken(words: str) -> str:
    """Put non-breaking spaces into `1.2 ± 0.3` and `[-1, +2]`."""
    return re.sub(r"(?<=\d) (?=±)|(?<=±) |(?<=\d,) (?=[-+]\d)", "\N{NO-BREAK SPACE}", words)


def markdown(words: str) -> str:
    """Escape Markdown and HTML, and put the text on one line."""
    return re.sub(r"([\\`*_\[\]<>|#$&~])", r"\\\1", " ".join(words.split()))

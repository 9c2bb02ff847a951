"""Table of docs/does-it-help.md: how many attention mappings are better or worse than softmax."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import compress

from sparse_attn.reports import text
from sparse_attn.reports.seed_statistics import LEVEL, VERDICTS, settled
from sparse_attn.reports.table import Table, markdown
from website import ROOT
from website.differences.entries import Entry, Kind

_USES: dict[Kind, str] = {
    "trained attention": "trained with the mapping",
    "attention from scratch": "trained from scratch, longer texts",
    "swapped attention": "swapped, without training",
    "healed attention": "converted (swapped and healed)",
}


def attention() -> list[str]:
    """Count the entries of docs/differences.json."""
    found = json.loads((ROOT / "docs/differences.json").read_text(encoding="utf-8"))
    return markdown(count([Entry(**entry) for entry in found]))


def count(entries: Sequence[Entry]) -> Table:
    """Count the verdicts of the comparisons that count, by use."""
    rows = []
    for kind, use in _USES.items():
        some = [entry for entry in entries if entry.kind == kind and entry.counts]
        if some:
            sides = [entry.side for entry in some]
            counts = [str(sides.count(side)) for side in VERDICTS if side is not None]
            rows.append([use, str(len(some)), *counts, f"{LEVEL / 2 * len(some):.1f}", _sure(some)])
    verdicts = [verdict for side, verdict in VERDICTS.items() if side is not None]
    headers = ["attention", "comparisons", *verdicts, "each by chance", "after Holm's correction"]
    return Table("", headers, rows)


def _sure(entries: Sequence[Entry]) -> str:
    """Count what is left after Holm's correction; unknown for intervals over examples."""
    p = [entry.p for entry in entries]
    if None in p:
        return text.NOTHING
    sides = [entry.side for entry in compress(entries, settled(p))]
    return f"{sides.count(1)} better, {sides.count(-1)} worse"

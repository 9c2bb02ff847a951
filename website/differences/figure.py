"""Forest plot of docs/does-it-help.md: a few differences of every use of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from sparse_attn.reports import canvas
from sparse_attn.reports.forest import mark
from website.differences.entries import Entry

_ROW = 0.18  # inches, with its share of titles and axes


class Group(NamedTuple):
    """Mappings of a study on one task, in the order of their rows."""

    title: str
    study: str
    task: str
    mappings: tuple[str, ...]


# by the title of their panel; the reports have the other mappings and studies
PANELS = {
    "Score, difference from softmax in points: better →": (
        Group("MRPC, trained, 17 seeds", "glue/mrpc-h200", "MRPC", ("r-softmax", "entmax-1.5")),
        Group("SST-2, trained, 3 seeds", "glue/minilm", "SST-2", ("r-softmax", "entmax-1.5")),
        Group("STS-B, trained, 3 seeds", "glue/minilm", "STS-B", ("r-softmax", "entmax-1.5")),
        Group(
            "STS-B, swapped",
            "compare",
            "STS-B/dev.tsv",
            ("top-p-softmax p=0.9", "sparsemax"),
        ),
        Group(
            "STS-B, converted",
            "conversion/minilm",
            "STS-B/dev.tsv",
            ("entmax, healed", "sparsemax, healed"),
        ),
    ),
    "Perplexity, difference from softmax in %: better →": (
        Group(
            "WikiText-2, LLM, swapped",
            "compare",
            "wikitext-2/valid.txt, 4,096 tokens",
            tuple(f"top-p-softmax p={p}" for p in (0.98, 0.95, 0.9, 0.8)),
        ),
    ),
}


def draw(entries: Sequence[Entry]) -> Figure:
    """Draw the groups of `PANELS`; better is to the right.

    Raises:
        KeyError: no entry for a mapping of a group.
    """
    known = {(entry.study, entry.task, entry.mapping): entry for entry in entries}
    panels = [
        [row for group in groups for row in _rows(group, known)] for groups in PANELS.values()
    ]
    figure, drawn = canvas.panels(list(PANELS), [_ROW * len(rows) for rows in panels], 1)
    for axes, rows in zip(drawn, panels, strict=True):
        axes.title.set_fontsize(10)
        axes.axvline(0, color="black", lw=1, ls="--")
        axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        for place, (tick, (_, entry)) in enumerate(zip(axes.get_yticklabels(), rows, strict=True)):
            if entry is None:
                tick.set_fontweight("bold")
            else:
                (look,) = canvas.looks([entry.mapping], None).values()
                assert entry.difference is not None
                filled = bool(entry.side)
                mark(axes, place, entry.difference, entry.interval, look["color"], filled, 6)
        axes.xaxis.set_inverted(not all(e.higher_is_better for _, e in rows if e))
    return figure


def _rows(group: Group, known: dict[tuple[str, str, str], Entry]) -> list[tuple[str, Entry | None]]:
    """Return the labels and entries of a group, below its title."""
    rows: list[tuple[str, Entry | None]] = [(group.title, None)]
    for mapping in group.mappings:
        entry = known[group.study, group.task, mapping]
        zeros = f"{100 * (entry.zeros or 0):.0f}\N{NO-BREAK SPACE}% zeros"
        rows.append((f"{mapping.removesuffix(', healed')} ({zeros})", entry))
    return rows

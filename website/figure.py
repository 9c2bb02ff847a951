"""Draw docs/differences.png: differences from softmax in a few studies, with their intervals.

python -m website.figure
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import NamedTuple

from matplotlib.figure import Figure

from sparse_attn.reports import canvas
from sparse_attn.reports.forest import mark
from website import ROOT
from website.tables import RESULTS

PATH = ROOT / "docs/differences.png"
_ROW = 0.22  # height in inches
_LLM = tuple(f"top-p-softmax p={p}" for p in (0.98, 0.95, 0.9, 0.8))


class Line(NamedTuple):
    """A row of the figure: the difference of a mapping, or a title, which has no interval."""

    label: str
    mapping: str = ""
    value: float = 0.0
    interval: tuple[float, float] | None = None


def draw() -> Figure:
    """Draw scores above perplexity; better is to the right."""
    panels = {
        "Score, difference from softmax in points: better \N{RIGHTWARDS ARROW}": [
            *_trained("MRPC, trained, 17 seeds", "mrpc-h200", "MRPC"),
            *_trained("SST-2, trained, 3 seeds", "minilm", "SST-2"),
            *_trained("STS-B, trained, 3 seeds", "minilm", "STS-B"),
            Line("STS-B, swapped"),
            *_of_record("compare/minilm-sts-b", "top-p-softmax p=0.9", "sparsemax"),
            Line("STS-B, converted"),
            *_of_record("conversion/minilm/entmax-90", "after training: entmax"),
            *_of_record("conversion/minilm/sparsemax", "after training: sparsemax"),
        ],
        "Perplexity, difference from softmax in %: better \N{RIGHTWARDS ARROW}": [
            Line("WikiText-2, LLM, swapped"),
            *_of_record("compare/smollm2-wikitext-4096", *_LLM),
        ],
    }
    heights = [_ROW * len(lines) for lines in panels.values()]
    figure, drawn = canvas.panels(list(panels), heights, 1)
    for axes, lines in zip(drawn, panels.values(), strict=True):
        axes.title.set_fontsize(10)
        axes.axvline(0, color="black", lw=1, ls="--")
        axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=8.5)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        for place, (tick, line) in enumerate(zip(axes.get_yticklabels(), lines, strict=True)):
            if line.interval is None:
                tick.set_fontweight("bold")
                continue
            (look,) = canvas.looks([line.mapping], None).values()
            filled = line.interval[0] > 0 or line.interval[1] < 0
            mark(axes, place, line.value, line.interval, look["color"], filled, 6)
    drawn[-1].xaxis.set_inverted(True)
    return figure


def _trained(title: str, study: str, task: str) -> Iterator[Line]:
    yield Line(title)
    with (RESULTS / f"glue/{study}/report.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["task"] == task and row["mapping"] in ("r-softmax", "entmax-1.5"):
                value, low, high = (100 * float(row[key]) for key in ("difference", "low", "high"))
                yield _line(row["mapping"], float(row["sparsity"]), value, (low, high))


def _of_record(name: str, *mappings: str) -> Iterator[Line]:
    record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    # perplexity relative to softmax's, because its level depends on the text
    factor = 100 / record["softmax"] if "windows" in record else 100
    rows = {row["mapping"]: row for row in record["mappings"]}
    for mapping in mappings:
        found = rows[mapping]["against_softmax"]
        low, high = (factor * end for end in found["interval"])
        yield _line(mapping, rows[mapping]["zeros"], factor * found["value"], (low, high))


def _line(mapping: str, zeros: float, value: float, interval: tuple[float, float]) -> Line:
    label = (
        f"{mapping.removeprefix('after training: ')} ({100 * zeros:.0f}\N{NO-BREAK SPACE}% zeros)"
    )
    return Line(label, mapping, value, interval)


if __name__ == "__main__":
    canvas.save(draw(), PATH)

"""The page: what was found, what could have been found, the figure and the entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from pipeline.report import text
from pipeline.report.page import Block, Bullets, Heading, Page, Plot, Table
from pipeline.report.spread import LEVEL
from sparse_attn.inspection.looks import mapping_in
from website.differences.entries import BASELINE, Entry
from website.differences.panels import Panel, draw, panels_of

SIDES = {1: "better", -1: "worse", 0: "not told apart", None: "one pair of runs"}
CAPTION = (
    "Difference from softmax and its 95 % interval; better is to the right. A ring: the interval "
    "contains 0. A cross: one pair of runs, without an interval. In brackets: exact zeros in "
    "attention, where they are known. Where a panel has several tasks, each has a mark in every "
    "row, in the order of the tables below."
)
HALF = (
    "Half width: of the intervals, in the median, which is the smallest effect that would usually "
    "have shown. By chance: how many intervals would leave out 0 if no mapping differed. Pairs: of "
    "runs with the same seed."
)


def make_page(entries: Sequence[Entry]) -> Page:
    """The answer to "does it help?"."""
    panels = panels_of(entries)
    table = _reach(panels)
    blocks: list[Block] = [
        _answer(entries),
        *_limits(entries),
        Heading("What could have been found"),
        table,
        *_flips(entries),
        Heading("The differences"),
        Plot("differences", "Differences from softmax, by task and metric", CAPTION, draw(panels)),
    ]
    for study in dict.fromkeys(entry.study for entry in entries):
        some = [entry for entry in entries if entry.study == study]
        blocks += [Heading(study, 3), _rows(some)]
    return Page("Does it help?", blocks, [table])


def _answer(entries: Sequence[Entry]) -> str:
    """How many are better and worse, in attention and elsewhere."""
    known = [entry for entry in entries if entry.counts]
    places = {
        "In attention": [entry for entry in known if entry.zeros is not None],
        "As an output layer or a loss": [entry for entry in known if entry.zeros is None],
    }
    by_place = [
        f"{place}, of {text.counted(len(some), 'comparison')} with softmax, {_sides(some)}; by "
        f"chance about {_chance(len(some))} would seem to differ."
        for place, some in places.items()
        if some
    ]
    return " ".join(
        [
            *by_place,
            f"By {100 * (1 - LEVEL):g} % intervals that are not adjusted for their number; each "
            "metric of the same runs counts.",
        ]
    )


def _sides(entries: Sequence[Entry]) -> str:
    sides = [entry.side for entry in entries]
    return text.listing([f"{sides.count(side)} {SIDES[side]}" for side in (1, -1, 0)])


def _chance(count: int) -> str:
    return f"{LEVEL * count:.1f}" if LEVEL * count < 10 else f"{LEVEL * count:.0f}"


def _limits(entries: Sequence[Entry]) -> list[Block]:
    """What is not counted, and what the intervals do not know."""
    said = {
        "One pair of runs settles nothing and is not counted: {}.": [
            entry for entry in entries if entry.side is None
        ],
        "Settings were chosen by the very scores that are compared, which is not counted: {}.": [
            entry for entry in entries if entry.tuned_on_scored_rows
        ],
        "The interval is over examples, of one model each, and knows no other training runs: {}.": [
            entry for entry in entries if entry.counts and entry.interval_over == "examples"
        ],
        "Softmax itself, otherwise set or trained, counts as another mapping: {}.": [
            entry for entry in entries if entry.counts and mapping_in(entry.mapping) == BASELINE
        ],
        "Some runs of the mapping diverged and are in no mean: {}.": [
            entry for entry in entries if entry.diverged
        ],
    }
    lines = []
    for sentence, some in said.items():
        if some:
            studies = [entry.study for entry in some]
            each = [f"{study} ({studies.count(study)})" for study in dict.fromkeys(studies)]
            lines.append(sentence.format(text.listing(each)))
    return [Bullets(lines)] if lines else []


def _reach(panels: Sequence[Panel]) -> Table:
    """Verdicts and half widths of each panel."""
    rows = []
    for panel in panels:
        some = [entry for entry in panel.entries if entry.interval]
        sides = [entry.side for entry in some if entry.counts]
        halves = [entry.half for entry in some]
        seeds = sorted({entry.seeds for entry in panel.entries})
        rows.append(
            [
                f"{panel.first.study}: {panel.task}",
                panel.first.metric,
                panel.first.unit,
                text.listing(list(map(str, seeds))),
                *(str(sides.count(side)) for side in (1, -1, 0)),
                _chance(len(sides)) if sides else text.NOTHING,
                f"{median(halves):.3g}" if some else text.NOTHING,
                f"{min(halves):.2g} to {max(halves):.2g}" if some else text.NOTHING,
            ]
        )
    headers = ["study: task", "metric", "unit", "pairs", *(SIDES[side] for side in (1, -1, 0))]
    return Table(HALF, [*headers, "by chance", "half width", "narrowest to widest"], rows)


def _flips(entries: Sequence[Entry]) -> list[Block]:
    """Mappings that one metric calls better and another worse, on the same task."""
    by_cell: dict[tuple[str, str, str, str], dict[int, list[str]]] = {}
    for entry in entries:
        cell = entry.study, entry.source, entry.mapping, entry.task
        if entry.counts and entry.side:
            by_cell.setdefault(cell, defaultdict(list))[entry.side].append(entry.metric)
    flips: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (study, _, mapping, task), by_side in by_cell.items():
        if len(by_side) == 2:
            verdict = f"better by {text.listing(by_side[1])}, worse by {text.listing(by_side[-1])}"
            flips[study, mapping, verdict].append(task)
    if not flips:
        return ["No verdict turns with the metric."]
    turned = sum(map(len, flips.values()))
    lines = [
        f"{study}, {mapping}: {verdict} ({text.listing(tasks)})."
        for (study, mapping, verdict), tasks in flips.items()
    ]
    head = (
        f"The verdict turns with the metric for {text.counted(turned, 'pair')} of mapping and task:"
    )
    return [head, Bullets(lines)]


def _rows(entries: Sequence[Entry]) -> Table:
    """A row per entry."""
    rows = [
        [
            entry.task,
            entry.metric,
            entry.mapping,
            _difference(entry),
            str(entry.seeds),
            text.NOTHING if entry.zeros is None else f"{100 * entry.zeros:.1f} %",
            "chosen by the score" if entry.tuned_on_scored_rows else SIDES[entry.side],
        ]
        for entry in entries
    ]
    headers = ["task", "metric", "mapping", "difference [95 %]", "pairs", "zeros", ""]
    return Table("", headers, rows)


def _difference(entry: Entry) -> str:
    pattern = "{:+.3f}" if entry.unit.startswith("nats") else "{:+.2f}"
    value = text.rounded(entry.difference, pattern)
    if entry.interval is None:
        return value
    low, high = (text.rounded(end, pattern) for end in entry.interval)
    return f"{value} [{low}, {high}]"

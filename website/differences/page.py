"""Page of the differences: results, what could be detected, the figure and the entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import compress
from statistics import median

from sparse_attn.reports import text
from sparse_attn.reports.page import Block, Bullets, Heading, Page, Plot, Table
from sparse_attn.reports.seed_statistics import LEVEL, POWER, VERDICTS, Difference, settled
from website.differences.entries import LEAST, Entry, Kind
from website.differences.panels import FEW, Panel, draw, panels_of

CAPTION = (
    "Difference from softmax and its 95 % interval by each study's first metric, without controls; "
    "better is to the right. A ring: not significant. A cross: one pair of runs, "
    "without an interval. In brackets: exact zeros in attention, where they are known. Grey: "
    "softmax itself has learned nothing. A number at the edge: off the scale. A panel of many "
    "tasks has a mark for each in every row, from top to bottom:"
)
REACH_CAPTION = (
    f"{100 * POWER:g} % power: the true difference that a paired t-test of so many pairs detects "
    f"in {100 * POWER:g} of 100 studies; median over mappings, and the largest. GLUE needs more: "
    "its intervals count the chance in the dev examples too. Half width: that "
    "of the intervals over examples, in the median; a true difference of this size is detected in "
    "half of such studies. By chance: how many would seem better, and as many worse, if no mapping "
    "differed. Controls are left out here and in the multi-label reports; other reports count them."
)
LAYERS_CAPTION = (
    "Other output layers and losses, by each study's first metric: number of tasks, each by its "
    "own 95 % interval, without a correction. softmax-fine is softmax with thresholds from 0.01. A "
    "study is a folder of results/; the page of results says what it ran."
)
ATTENTION_CAPTION = (
    "Attention compared with softmax, by the 95 % interval of each comparison. An interval over "
    "examples is about that one trained model: another seed may differ. By chance: how many "
    "would seem better, and as many worse, if no mapping differed. Holm: those left after Holm's "
    "correction for the comparisons of the row; intervals over examples have no p."
)
ATTENTION: dict[Kind, str] = {
    "trained attention": "models trained with the mapping, over runs",
    "swapped attention": "swapped in a trained model, over examples",
    "healed attention": "swapped and healed, over examples",
}


def make_page(entries: Sequence[Entry]) -> Page:
    """Return the page that answers "Does it help?"."""
    table, first = _detectable_differences(panels_of(entries)), _first_metric(entries)
    panels = panels_of([e for e in first if e.difference is not None and not e.control])
    order = [f"{p.first.study}: {text.listing(p.tasks)}." for p in panels if len(p.tasks) > FEW]
    known = [entry for entry in first if entry.counts]
    blocks: list[Block] = [
        *_attention([entry for entry in known if entry.kind in ATTENTION]),
        *_layers([entry for entry in known if entry.kind not in ATTENTION]),
        *_limits(entries),
        Heading("What these studies could detect"),
        table,
        *_contradictory_metrics(entries),
        Heading("The differences"),
        Plot("differences", "Differences from softmax, by task", CAPTION, draw(panels)),
        *([Bullets(order)] if order else []),
    ]
    for study in dict.fromkeys(entry.study for entry in entries):
        some = [entry for entry in entries if entry.study == study]
        if len({entry.task for entry in some}) <= FEW:
            blocks += [Heading(study, 3), _rows(some)]
    return Page("Does it help?", blocks, [])


def _first_metric(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with the first metric of their study and task."""
    first: dict[tuple[str, str], str] = {}
    for entry in entries:
        first.setdefault((entry.study, entry.task), entry.metric)
    return [entry for entry in entries if entry.metric == first[entry.study, entry.task]]


def _attention(entries: Sequence[Entry]) -> list[Block]:
    """Return tables of better and worse mappings: numbers by kind of use, and names."""
    rows, named = [], []
    for kind, use in ATTENTION.items():
        some = [entry for entry in entries if entry.kind == kind]
        if not some:
            continue
        sides = [entry.side for entry in some]
        counts = [str(sides.count(side)) for side in (1, -1, 0)]
        sure = None if any(entry.p is None for entry in some) else _significant(some)
        left = [entry.side for entry in sure or ()]
        after = [text.NOTHING if sure is None else str(left.count(side)) for side in (1, -1)]
        chance = f"{LEVEL / 2 * len(some):.1f}"
        rows.append([use, str(len(some)), *counts, chance, *after])
        for entry in some:
            if entry.side:
                said = text.NOTHING if sure is None else VERDICTS[entry.side * (entry in sure)]
                cells = [entry.label, entry.task, entry.study, use, _difference(entry)]
                named.append([*cells, VERDICTS[entry.side], said])
    headers = ["use", "comparisons", *(VERDICTS[side] for side in (1, -1, 0)), "by chance"]
    table = Table(ATTENTION_CAPTION, [*headers, "Holm: better", "Holm: worse"], rows)
    headers = ["mapping", "task", "study", "use", "difference [95 %]", "by its interval"]
    which = Table("Better or worse by their interval", [*headers, "after Holm's correction"], named)
    return [block for block in (table, which) if block.rows]


def _significant(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that are significant after Holm's correction over all with a p."""
    return list(compress(entries, settled([entry.p for entry in entries])))


def _layers(entries: Sequence[Entry]) -> list[Block]:
    """Return a row per study and mapping: the number of tasks where it is better and worse."""
    by_mapping: dict[tuple[str, ...], list[int | None]] = defaultdict(list)
    for entry in entries:
        cell = entry.study, entry.metric, entry.label, entry.baseline
        by_mapping[cell].append(entry.side)
    rows = [
        [*cell, *(str(sides.count(side)) for side in (1, -1, 0))]
        for cell, sides in by_mapping.items()
    ]
    headers = ["study", "metric", "mapping", "baseline", *(VERDICTS[side] for side in (1, -1, 0))]
    return [Table(LAYERS_CAPTION, headers, rows)] if rows else []


def _limits(entries: Sequence[Entry]) -> list[Block]:
    """Return the comparisons that are not counted, and the limits of the intervals."""
    known = [entry for entry in entries if entry.difference is not None]
    few = [e for e in known if e.seeds < LEAST and not e.over_examples]
    chance = [entry for entry in known if not entry.baseline_learned]
    lost = [entry for entry in entries if entry.lost or entry.difference is None]
    said = {
        f"fewer than {LEAST} pairs of runs": _by_study(few),
        "settings chosen by the very scores that are compared": _by_study(
            [entry for entry in known if entry.tuned_on_scored_rows]
        ),
        "controls": [f"{e.label} ({e.study})" for e in known if e.control],
        "controls better than softmax": [
            f"{e.label} ({e.study})" for e in known if e.control and e.side == 1
        ],
        "softmax itself no better than always the most frequent class": [
            f"{entry.task} ({entry.study})" for entry in chance
        ],
        "runs that diverged, failed or gave no finite value": [
            f"{entry.label} ({entry.study}, {entry.task}, {entry.metric}: {entry.lost})"
            for entry in lost
        ],
    }
    rows = [[why, "; ".join(dict.fromkeys(names))] for why, names in said.items() if names]
    caption = "What the counts leave out, and in brackets its study, or how many"
    return [Table(caption, ["left out", "where"], rows)] if rows else []


def _by_study(entries: Sequence[Entry]) -> list[str]:
    studies = [entry.study for entry in entries]
    return [f"{study} ({studies.count(study)})" for study in dict.fromkeys(studies)]


def _detectable_differences(panels: Sequence[Panel]) -> Table:
    """Return the verdicts of each panel, and the detectable differences."""
    rows = []
    for panel in panels:
        some = [entry for entry in panel.entries if entry.counts]
        sides = [entry.side for entry in some]
        effects = [entry.detectable for entry in some if entry.detectable is not None]
        halves = [
            (e.interval[1] - e.interval[0]) / 2 for e in some if e.interval and e.over_examples
        ]
        seeds = sorted({entry.seeds for entry in panel.entries})
        rows.append(
            [
                f"{panel.first.study}: {panel.task}",
                panel.first.metric,
                panel.first.unit,
                text.listing(list(map(str, seeds))),
                *(str(sides.count(side)) for side in (1, -1, 0)),
                f"{LEVEL / 2 * len(sides):.1f}" if sides else text.NOTHING,
                f"{median(effects):.3g} ({max(effects):.3g})" if effects else text.NOTHING,
                f"{median(halves):.3g}" if halves else text.NOTHING,
            ]
        )
    headers = ["study: task", "metric", "unit", "pairs", *(VERDICTS[side] for side in (1, -1, 0))]
    power = f"{100 * POWER:g} % power"
    return Table(REACH_CAPTION, [*headers, "by chance", power, "half width"], rows)


def _contradictory_metrics(entries: Sequence[Entry]) -> list[Block]:
    """Return the mappings that are better by one metric and worse by another on the same task."""
    by_cell: dict[tuple[str, str, str], dict[int, list[str]]] = {}
    for entry in entries:
        if entry.counts and entry.side:
            sides = by_cell.setdefault((entry.study, entry.label, entry.task), {1: [], -1: []})
            sides[entry.side].append(entry.metric)
    rows = [
        [*cell, ", ".join(sides[1]), ", ".join(sides[-1])]
        for cell, sides in by_cell.items()
        if all(sides.values())
    ]
    caption = "Mappings that one metric calls better and another worse, on the same task"
    headers = ["study", "mapping", "task", "better by", "worse by"]
    return [Table(caption, headers, rows)] if rows else []


def _rows(entries: Sequence[Entry]) -> Table:
    """Return a table with a row per entry."""
    rows = [
        [
            entry.task,
            entry.metric,
            entry.label,
            entry.baseline,
            _difference(entry),
            str(entry.seeds),
            text.NOTHING if entry.zeros is None else f"{100 * entry.zeros:.1f} %",
            _verdict(entry),
        ]
        for entry in entries
    ]
    headers = ["task", "metric", "mapping", "baseline", "difference [95 %]", "pairs", "zeros"]
    return Table("", [*headers, "by its interval"], rows)


def _verdict(entry: Entry) -> str:
    if entry.difference is None:
        return "no finite value"
    said = "chosen by the score" if entry.tuned_on_scored_rows else VERDICTS[entry.side]
    return f"control: {said}" if entry.control else said


def _difference(entry: Entry) -> str:
    if entry.difference is None:
        return text.NOTHING
    digits, ends = 3 if entry.unit.startswith("nats") else 2, entry.interval or ()
    # an end that is rounded to 0 would contradict the verdict
    while any(end and not float(f"{end:.{digits}f}") for end in ends):
        digits += 1
    return Difference(entry.difference, entry.interval, entry.seeds).text(f"{{:+.{digits}f}}")

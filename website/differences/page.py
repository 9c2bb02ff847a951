"""The page: what was found, what could have been found, the figure and the entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from pipeline.report import text
from pipeline.report.page import Block, Bullets, Heading, Page, Plot, Table
from pipeline.report.spread import LEVEL, POWER, Difference
from website.differences.entries import Entry
from website.differences.panels import Panel, draw, panels_of

SIDES = {1: "better", -1: "worse", 0: "not told apart", None: "one pair of runs"}
CAPTION = (
    "Difference from softmax and its 95 % interval by each study's first metric, without controls; "
    "better is to the right. A ring: the interval contains 0. A cross: one pair of runs, without "
    "an interval. In brackets: exact zeros in attention, where they are known. Where a panel has "
    "several tasks, each has a mark in every row, in the order of the tables below."
)
POWER_CAPTION = (
    f"{100 * POWER:g} % power: the true difference that a t-test of so many pairs of runs with the "
    "same seed finds with that probability, in the median. Half width: of the intervals over "
    "examples of one model, in the median, which show a true difference of that size about half of "
    "the time. By chance: how many intervals would leave out 0 if no mapping differed."
)
ATTENTION = {
    "several training runs": lambda entry: entry.interval_over != "examples",
    "one model, intervals over its examples": lambda entry: entry.interval_over == "examples",
}


def make_page(entries: Sequence[Entry]) -> Page:
    """The answer to "does it help?"."""
    table, first = _reach(panels_of(entries)), _first_metric(entries)
    shown = [entry for entry in first if entry.difference is not None and not entry.control]
    figure = draw(panels_of(shown))
    blocks: list[Block] = [
        *_answer(first),
        *_limits(entries),
        Heading("What could have been found"),
        table,
        *_flips(entries),
        Heading("The differences"),
        Plot("differences", "Differences from softmax, by task", CAPTION, figure),
    ]
    for study in dict.fromkeys(entry.study for entry in entries):
        some = [entry for entry in entries if entry.study == study]
        blocks += [Heading(study, 3), _rows(some)]
    return Page("Does it help?", blocks, [table])


def _first_metric(entries: Sequence[Entry]) -> list[Entry]:
    """Those by the metric that comes first for their study and task."""
    first: dict[tuple[str, str], str] = {}
    for entry in entries:
        first.setdefault((entry.study, entry.task), entry.metric)
    return [entry for entry in entries if entry.metric == first[entry.study, entry.task]]


def _answer(entries: Sequence[Entry]) -> list[Block]:
    """How many are better and worse: in attention, and for each study of other layers."""
    known = [entry for entry in entries if entry.counts]
    attention = _once([entry for entry in known if entry.zeros is not None])
    said = []
    for name, of in ATTENTION.items():
        if some := list(filter(of, attention)):
            said.append(
                f"In attention, {name}: of {text.counted(len(some), 'comparison')} with softmax, "
                f"{_sides(some)}; by chance about {_chance(len(some))} would seem to differ."
            )
    lines = []
    by_study: dict[tuple[str, str, str], list[Entry]] = defaultdict(list)
    for entry in known:
        if entry.zeros is None:
            by_study[entry.study, entry.metric, entry.baseline].append(entry)
    for (study, metric, base), some in by_study.items():
        tasks = text.counted(len({entry.task for entry in some}), "task")
        lines.append(f"{study}: {tasks}, {metric}, against {base}: {_sides(some)}.")
    said.append(
        f"{100 * (1 - LEVEL):g} % intervals, not adjusted for their number; controls do not count."
    )
    rest: list[Block] = ["Other output layers and losses, by each study's first metric:"]
    return [" ".join(said), *([*rest, Bullets(lines)] if lines else [])]


def _once(entries: Sequence[Entry]) -> list[Entry]:
    """Without measurements that stand in another study too: all their six digits are the same."""
    first: dict[tuple[object, ...], str] = {}
    kept = []
    for entry in entries:
        key = entry.metric, entry.difference, entry.interval, entry.zeros
        # within a study, equal numbers are of two mappings
        if first.setdefault(key, entry.study) == entry.study:
            kept.append(entry)
    return kept


def _sides(entries: Sequence[Entry]) -> str:
    sides = [entry.side for entry in entries]
    return text.listing([f"{sides.count(side)} {SIDES[side]}" for side in (1, -1, 0)])


def _chance(count: int) -> str:
    return f"{LEVEL * count:.1f}" if LEVEL * count < 10 else f"{LEVEL * count:.0f}"


def _limits(entries: Sequence[Entry]) -> list[Block]:
    """What is not counted, and what the intervals do not know."""
    known = [entry for entry in entries if entry.difference is not None]
    alone = [entry for entry in known if entry.side is None]
    tuned = [entry for entry in known if entry.tuned_on_scored_rows]
    controls = [entry for entry in known if entry.control]
    lost = [entry for entry in entries if entry.diverged or entry.difference is None]
    said = {
        "One pair of runs settles nothing and is not counted: {}.": _by_study(alone),
        "Settings were chosen by the very scores that are compared, which is not counted: {}.": (
            _by_study(tuned)
        ),
        "Controls, which are not counted: {}.": list(
            dict.fromkeys(f"{entry.label} ({entry.study})" for entry in controls)
        ),
        "Runs diverged, or a value is not finite; what is left has no such run in its mean: {}.": [
            f"{entry.label} ({entry.study}, {entry.task}, {entry.metric}: {entry.diverged} "
            f"diverged{', no difference' if entry.difference is None else ''})"
            for entry in lost
        ],
    }
    lines = [sentence.format(text.listing(names)) for sentence, names in said.items() if names]
    return ["What the counts leave out:", Bullets(lines)] if lines else []


def _by_study(entries: Sequence[Entry]) -> list[str]:
    studies = [entry.study for entry in entries]
    return [f"{study} ({studies.count(study)})" for study in dict.fromkeys(studies)]


def _reach(panels: Sequence[Panel]) -> Table:
    """Verdicts of each panel, and what would have shown."""
    rows = []
    for panel in panels:
        sides = [entry.side for entry in panel.entries if entry.counts]
        effects = [entry.detectable for entry in panel.entries if entry.detectable is not None]
        halves = [e.half for e in panel.entries if e.interval and e.interval_over == "examples"]
        seeds = sorted({entry.seeds for entry in panel.entries})
        rows.append(
            [
                f"{panel.first.study}: {panel.task}",
                panel.first.metric,
                panel.first.unit,
                text.listing(list(map(str, seeds))),
                *(str(sides.count(side)) for side in (1, -1, 0)),
                _chance(len(sides)) if sides else text.NOTHING,
                *(f"{median(some):.3g}" if some else text.NOTHING for some in (effects, halves)),
            ]
        )
    headers = ["study: task", "metric", "unit", "pairs", *(SIDES[side] for side in (1, -1, 0))]
    power = f"{100 * POWER:g} % power"
    return Table(POWER_CAPTION, [*headers, "by chance", power, "half width"], rows)


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
            entry.label,
            entry.baseline,
            _difference(entry),
            str(entry.seeds),
            text.NOTHING if entry.zeros is None else f"{100 * entry.zeros:.1f} %",
            _verdict(entry),
        ]
        for entry in entries
    ]
    headers = ["task", "metric", "mapping", "baseline", "difference [95 %]", "pairs", "zeros", ""]
    return Table("", headers, rows)


def _verdict(entry: Entry) -> str:
    if entry.difference is None:
        return "diverged or not finite"
    said = "chosen by the score" if entry.tuned_on_scored_rows else SIDES[entry.side]
    return f"control: {said}" if entry.control else said


def _difference(entry: Entry) -> str:
    if entry.difference is None:
        return text.NOTHING
    digits, ends = 3 if entry.unit.startswith("nats") else 2, entry.interval or ()
    # an end that is shown as 0 would contradict the verdict
    while any(end and not float(f"{end:.{digits}f}") for end in ends):
        digits += 1
    return Difference(entry.difference, entry.interval, entry.seeds).text(f"{{:+.{digits}f}}")

"""The conclusions, as sentences built from the numbers."""

from __future__ import annotations

from collections import defaultdict

from engine.sweep.results import ended
from glue.report.runs import Sweep
from glue.report.table import Row
from glue.sweep import BASELINE
from sparse_attn.reports import text
from sparse_attn.reports.bootstrap import expected_best
from sparse_attn.reports.seed_statistics import LEVEL, Difference, reach

Compared = list[tuple[Row, Difference]]
# with fewer seeds, significant differences come with a warning
FEW = 5
SELECTED_ON_DEV = (
    "Protocol paper: each score is the best point of a grid, picked on the very dev set it is "
    "reported on, so every score is too high. {sizes} The more points, the higher their best by "
    "luck alone: of normal draws the best of 5 lies 1.16 standard deviations above the mean, the "
    "best of 25 lies 1.97. The intervals and p-values below know nothing of this choice. Nothing "
    "here shows that a mapping helps; use protocol fair for that."
)


def status(sweep: Sweep) -> list[str]:
    """How complete the sweep is, and the limits of its protocol."""
    there, expected = len(sweep.records), sweep.expected
    lines = []
    if there < expected:
        lines.append(
            f"This sweep is incomplete: {there} of {expected} runs are there. Everything below is "
            "about those alone, and may change."
        )
    if not sweep.fair:
        sizes = {mapping: sweep.searches(mapping) for mapping in sweep.mappings}
        each = text.listing([f"{mapping} has {size}" for mapping, size in sizes.items()])
        what = "All grids are of one size:" if len(set(sizes.values())) == 1 else "Grids differ:"
        lines.append(SELECTED_ON_DEV.format(sizes=f"{what} {each}."))
    return lines


def verdict(sweep: Sweep, rows: list[Row]) -> list[str]:
    """Which mappings differ from softmax, the detectable effects, and failures."""
    compared = [(row, row.difference) for row in rows if row.difference]
    if not compared:
        missing = [f"{r.task} {r.mapping}" for r in rows if r.mapping == BASELINE and not r.scores]
        reason = (
            f"softmax has no finished run that counts ({text.listing(missing)})"
            if missing
            else "no other mapping has a run with a seed that softmax has"
        )
        return [f"Nothing can be compared with softmax yet: {reason}.", *_failures(sweep)]
    # one pair is no evidence
    judged = [(row, found) for row, found in compared if found.n > 1]
    total = text.counted(len(compared), "difference")
    unjudged = f"{total} from softmax, none judged: one seed each."
    return [
        _summary(sweep, compared) if judged else unjudged,
        *_equal_budget(sweep),
        *_significant(judged),
        *_not_significant(judged),
        *_few_seeds(compared),
        *_named(
            "One seed only: {}. There only the examples are drawn anew, so the interval is about "
            "that pair of runs and not about the mapping, which is not judged.",
            [
                f"{row.cell} {text.signed(found.value)} {text.interval(found.low, found.high)}"
                for row, found in compared
                if found.n == 1
            ],
        ),
        *_detectable(sweep, compared),
        *_named(
            "Runs that predict a single class, so have not learned: {}.",
            [f"{r.cell} ({r.one_class} of {len(r.scores)})" for r in rows if r.one_class],
        ),
        *_named(
            "Not compared, for want of a seed that softmax has too: {}.",
            [r.cell for r in rows if r.mapping != BASELINE and r.difference is None],
        ),
        *_failures(sweep),
    ]


def _named(sentence: str, found: list[str]) -> list[str]:
    """The sentence with the found items, or nothing if there are none."""
    return [sentence.format(text.listing(found))] if found else []


def _summary(sweep: Sweep, compared: Compared) -> str:
    found = sum(row.significant for row, _ in compared)
    total = text.counted(len(compared), "difference")
    if not found:
        return (
            f"None of {total} from softmax is significant (Holm's p over all of them below "
            f"{LEVEL}). That is no proof that there is none; see what would have been missed."
        )
    verb = "is" if found == 1 else "are"
    line = f"{found} of {total} from softmax {verb} significant (Holm's p over all below {LEVEL})"
    return f"{line}." if sweep.fair else f"{line}, at face value: see above."


def _equal_budget(sweep: Sweep) -> list[str]:
    """The comparison missing from the paper's protocol: the best of equally many points."""
    sizes = {sweep.searches(mapping) for mapping in sweep.mappings}
    if sweep.fair or len(sizes) == 1:
        return []
    lines = []
    for task in sweep.tasks:
        found = {m: [r.score for r in sweep.searched(task, m)] for m in sweep.mappings}
        each = [
            f"{mapping} {text.score(expected_best(scores)[min(sizes) - 1])}"
            for mapping, scores in found.items()
            if len(scores) >= min(sizes)
        ]
        if each:
            best = (
                f"{task}, expected best of {min(sizes)} points each, the size of the smallest grid"
            )
            lines.append(f"{best}: {', '.join(each)}.")
    return lines


def _significant(compared: Compared) -> list[str]:
    lines = []
    for word, side in (("Better", 1), ("Worse", -1)):
        each = "; ".join(
            f"{row.cell} by {text.signed(found.value)} points "
            f"{text.interval(found.low, found.high)}, Holm's p {text.probability(row.holm)}"
            for row, found in compared
            if row.significant and side * found.value > 0
        )
        if each:
            lines.append(f"{word} than softmax: {each}.")
    return lines


def _few_seeds(compared: Compared) -> list[str]:
    few = min((found.n for row, found in compared if row.significant), default=FEW)
    if few >= FEW:
        return []
    return [
        f"Significant on as few as {few} seeds, where neither the bootstrap nor the t-test is sure "
        "(see Methods). More would settle it."
    ]


def _not_significant(compared: Compared) -> list[str]:
    """Differences whose own interval excludes 0, and the rest."""
    lines, seen = [], set[str]()
    for word, side in (("Better", 1), ("Worse", -1)):
        found = [(row, d) for row, d in compared if not row.significant and d.side == side]
        seen |= {row.cell for row, _ in found}
        each = [
            f"{row.cell} {text.signed(d.value)} {text.interval(d.low, d.high)}, p "
            f"{text.probability(d.p)}"
            for row, d in found
        ]
        where = f"{word} before correction alone, so not settled: {{}}."
        lines += _named(where, ["; ".join(each)] if each else [])
    rest: dict[str, list[str]] = defaultdict(list)
    for row, _ in compared:
        if not row.significant and row.cell not in seen:
            rest[row.mapping].append(row.task)
    each = [f"{mapping} ({text.listing(tasks)})" for mapping, tasks in rest.items()]
    return lines + _named("No difference shown: {}.", each)


def _detectable(sweep: Sweep, compared: Compared) -> list[str]:
    return [
        f"{task}: {said}"
        for task in sweep.tasks
        for said in reach(
            [found.scaled(100) for row, found in compared if row.task == task], "{:.2f}", "points"
        )
    ]


def _failures(sweep: Sweep) -> list[str]:
    count = ended(sweep.records)
    failed, diverged = count["failed"], count["diverged"]
    runs = text.counted(len(sweep.records), "run")
    line = f"Of {runs}, {failed} failed and {diverged} diverged."
    if not failed and not diverged:
        return [line]
    return [line + " Means are over the runs that finished; where some did not, they flatter."]

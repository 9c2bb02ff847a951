"""What the numbers say, in sentences made from them."""

from __future__ import annotations

from glue.report.runs import Sweep
from glue.report.statistics import LEVEL, expected_best
from glue.report.table import Row
from glue.sweep import BASELINE
from pipeline.report import text

# below so many seeds a significant difference is told with a warning
FEW = 5
SELECTED_ON_DEV = (
    "Protocol paper: each score is the best point of a grid, picked on the very dev set it is "
    "reported on, so every score is too high. {sizes} The more points, the higher their best by "
    "luck alone: of normal draws the best of 5 lies 1.16 standard deviations above the mean, the "
    "best of 25 lies 1.97. The intervals and p-values below know nothing of this choice. Nothing "
    "here shows that a mapping helps; use protocol fair for that."
)


def status(sweep: Sweep) -> list[str]:
    """How much of the sweep is there, and what its protocol cannot tell."""
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
    """What differs from softmax and what does not, what could have been seen, what went wrong."""
    compared = [row for row in rows if row.difference]
    if not compared:
        missing = [f"{r.task} {r.mapping}" for r in rows if r.mapping == BASELINE and not r.scores]
        reason = (
            f"softmax has no finished run that counts ({text.listing(missing)})"
            if missing
            else "no other mapping has a run with a seed that softmax has"
        )
        return [f"Nothing can be compared with softmax yet: {reason}.", *_failures(sweep)]
    return [
        _summary(sweep, compared),
        *_equal_budget(sweep),
        *_significant(compared),
        *_few_seeds(compared),
        *_not_significant(sweep, compared),
        *_one_seed(compared),
        *_detectable(sweep, compared),
        *_not_learned(rows),
        *_not_compared(rows),
        *_failures(sweep),
    ]


def _summary(sweep: Sweep, compared: list[Row]) -> str:
    found = sum(row.significant for row in compared)
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
    """What the paper's protocol should have compared: the best of equally many points."""
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


def _significant(compared: list[Row]) -> list[str]:
    sides = (("Better", 1), ("Worse", -1))
    lines = []
    for word, side in sides:
        found = [r for r in compared if r.significant and r.difference and _sign(r) == side]
        if found:
            lines.append(f"{word} than softmax: {'; '.join(map(_told, found))}.")
    return lines


def _few_seeds(compared: list[Row]) -> list[str]:
    few = [r.difference.seeds for r in compared if r.significant and r.difference]
    if not few or min(few) >= FEW:
        return []
    return [
        f"What is significant rests on {min(few)} seeds in part or in whole; with so few "
        "neither the bootstrap nor the t-test is sure (see Methods). More would settle it."
    ]


def _not_significant(sweep: Sweep, compared: list[Row]) -> list[str]:
    lines = []
    for mapping in sweep.others:
        found = [r for r in compared if r.mapping == mapping and not r.significant]
        if found:
            each = "; ".join(
                f"{row.task} {text.signed(d.value)} {text.interval(d.low, d.high)}"
                + (f" (p {text.probability(d.p)} before correction)" if d.p < LEVEL else "")
                for row in found
                if (d := row.difference)
            )
            lines.append(f"No significant difference for {mapping}: {each}.")
    return lines


def _one_seed(compared: list[Row]) -> list[str]:
    found = [
        f"{row.mapping} on {row.task}"
        for row in compared
        if row.difference and row.difference.seeds == 1
    ]
    if not found:
        return []
    return [
        f"One seed only: {text.listing(found)}. There only the examples are drawn anew, so "
        "interval and p are about that pair of runs and not about the mapping; it is not called "
        "significant."
    ]


def _detectable(sweep: Sweep, compared: list[Row]) -> list[str]:
    lines = []
    for task in sweep.tasks:
        found = [
            row.difference
            for row in compared
            if row.task == task and row.difference and row.difference.detectable is not None
        ]
        effects = [100 * d.detectable for d in found if d.detectable is not None]
        if effects:
            widths = [50 * (d.high - d.low) for d in found]
            pairs = " or ".join(str(seeds) for seeds in sorted({d.seeds for d in found}))
            lines.append(
                f"{task}: with {pairs} paired seeds, chance between seeds hides true differences "
                f"below {_span(effects)} points, by mapping, once in five times or more. The "
                f"intervals, which count the chance in the dev examples too, reach {_span(widths)} "
                "points to each side."
            )
    return lines


def _not_learned(rows: list[Row]) -> list[str]:
    found = [
        f"{row.mapping} on {row.task} ({row.one_class} of {len(row.scores)})"
        for row in rows
        if row.one_class
    ]
    if not found:
        return []
    return [f"Runs that say the same of every example, so have not learned: {text.listing(found)}."]


def _not_compared(rows: list[Row]) -> list[str]:
    found = [
        f"{row.mapping} on {row.task}"
        for row in rows
        if row.mapping != BASELINE and row.difference is None
    ]
    if not found:
        return []
    return [f"Not compared, for want of a seed that softmax has too: {text.listing(found)}."]


def _failures(sweep: Sweep) -> list[str]:
    failed, diverged = sweep.count("failed"), sweep.count("diverged")
    runs = text.counted(len(sweep.records), "run")
    line = f"Of {runs}, {failed} failed and {diverged} diverged."
    if not failed and not diverged:
        return [line]
    return [line + " Means are over the runs that finished; where some did not, they flatter."]


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _sign(row: Row) -> int:
    return 0 if row.difference is None else (row.difference.value > 0) - (row.difference.value < 0)


def _told(row: Row) -> str:
    assert row.difference is not None
    span = text.interval(row.difference.low, row.difference.high)
    return (
        f"{row.mapping} on {row.task} by {text.signed(row.difference.value)} points {span}, Holm's "
        f"p {text.probability(row.holm_all)}"
    )

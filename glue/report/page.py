"""The blocks of the report."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any

from sparse_attn.engine.config import ScheduleConfig
from sparse_attn.engine.sweep.results import ended
from sparse_attn.reports import text
from sparse_attn.reports.bootstrap import expected_best
from sparse_attn.reports.forest import forest
from sparse_attn.reports.page import Block, Bullets, Heading, Plot, Status, Table
from sparse_attn.reports.seed_statistics import Difference, estimate

from ..data import CUT
from ..report import published
from ..sweep import BASELINE, CandidateConfig
from .notes import notes
from .plots import make_plots
from .runs import Sweep, first_split, results_of
from .table import Row, Setting, chosen_by_chance, labels, majority

SELECTED_ON_DEV = (
    "Protocol paper: each score is the best point of a grid, picked on the very dev set it is "
    "reported on, so every score is too high, and more so for a larger grid. Intervals and "
    "p-values know nothing of this choice. Nothing here shows that a mapping helps; use protocol "
    "fair for that."
)
POWER = (
    "The 95 % intervals are ±{} points in the median: a true difference of that size is seen about "
    "half of the time, and a smaller one less often."
)
BY_CHANCE = (
    "Settings chosen by chance, because at most one held-out row separates the best trial from "
    "those of other settings, or none beats the most frequent class: {}."
)


def blocks(sweep: Sweep, rows: list[Row]) -> list[Block]:
    """Return the blocks of the report; `rows` come from `make_rows`."""
    found: list[Block] = [_status(sweep), *_remarks(sweep, rows), *_differences(rows)]
    found.append(overview(sweep, rows))
    for task in sweep.tasks:
        of_task = [row for row in rows if row.task == task]
        found += [Heading(task), Bullets(_facts(sweep, task)), _scores(sweep, of_task)]
        found += [_costs(of_task), *make_plots(sweep, task)]
    found += [Heading("Mappings"), _mappings(sweep)]
    found += [Heading("Methods"), Bullets(_environment(sweep)), *notes(sweep)]
    unfinished = _unfinished(sweep)
    if unfinished.rows:
        found += [Heading("Runs that failed or diverged"), unfinished]
    if sweep.faults:
        found += [Heading("Records that could not be used"), Bullets(sweep.faults)]
    return found


def _status(sweep: Sweep) -> Block:
    """Return a line on the number of runs, highlighted while some are missing."""
    count, there = ended(sweep.records), len(sweep.records)
    line = f"Runs: {there} of {sweep.expected}. Failed: {count['failed']}. "
    line += f"Diverged: {count['diverged']}."
    return Status(f"Incomplete. {line}") if there < sweep.expected else line


def _remarks(sweep: Sweep, rows: list[Row]) -> list[Block]:
    """Return what to know before the numbers: how they were chosen, and what they can show."""
    found = [] if sweep.fair else [SELECTED_ON_DEV]
    pairs = (row.difference for row in rows if row.difference and row.difference.n > 1)
    if halves := [pair.half for pair in pairs if pair.half > 0]:
        found.append(POWER.format(text.score(median(halves))))
    by_task = {task: chosen_by_chance(sweep, task) for task in sweep.tasks}
    if told := [f"{task} ({', '.join(names)})" for task, names in by_task.items() if names]:
        found.append(BY_CHANCE.format("; ".join(told)))
    return [Status(line) for line in found]


def _differences(rows: list[Row]) -> list[Plot]:
    """Return a forest plot of all differences from softmax, if any."""
    found: dict[str, dict[str, Difference]] = defaultdict(dict)
    for row in rows:
        if row.difference:
            found[row.task][row.mapping] = row.difference.scaled(100)
    settled = [(row.task, row.mapping) for row in rows if row.significant]
    figure = forest(found, "points above softmax", settled)
    caption = (
        "Mean difference of scores in points with its 95 % interval. Filled: significant after "
        "correction; open: not significant."
    )
    return [Plot("differences", "Difference from softmax", caption, figure)] if figure else []


def overview(sweep: Sweep, rows: list[Row]) -> Table:
    by_cell = {(row.task, row.mapping): row for row in rows}
    lines = []
    for mapping in sweep.mappings:
        cells = [by_cell[task, mapping] for task in sweep.tasks]
        lines.append([mapping, *map(_score_with_difference, cells)])
    return Table(
        "Mean score, and in brackets the difference to softmax over the seeds that both have; * "
        "marks a significant one.",
        ["Mapping", *sweep.tasks],
        lines,
    )


def verdicts(sweep: Sweep, rows: list[Row]) -> Table:
    """Return the scores of one task and the verdicts on the differences from softmax."""
    table = _scores(sweep, rows)
    shown = (
        "Mapping",
        "Mean ± sd",
        "Difference",
        "95 % interval",
        "Verdict",
        "Detectable (one test)",
    )
    places = [table.headers.index(header) for header in shown]
    return table.columns(
        *places, caption=f"Scores of {rows[0].task} x 100, and differences from softmax."
    )


def _score_with_difference(row: Row) -> str:
    if row.difference is None:
        return text.score(row.mean)
    star = "*" if row.significant else ""
    return f"{text.score(row.mean)} ({text.signed(row.difference.value)}{star})"


def _facts(sweep: Sweep, task: str) -> list[str]:
    """Return lines on the score, the training and the most frequent class of a task."""
    record = sweep.first(task)
    if record is None:
        return ["Runs: none has finished."]
    train, split = record.config["train"], first_split(record)
    precision = "fp32" if train["mixed_precision"] == "no" else train["mixed_precision"]
    length = (
        f"{train['epochs']:g} epoch{'s' if train['epochs'] != 1 else ''}"
        if train["max_steps"] is None
        else f"{train['max_steps']} steps"
    )
    constant, rows = majority(sweep, task), results_of(record)["rows"]
    cut = results_of(record).get(CUT, {})  # which older records lack
    return [
        f"Score: {sweep.metric(task)} x 100 on {split}, {len(labels(record)):,} rows.",
        f"Training: {rows['train']:,} rows, {length}, batches of "
        f"{train['batch_size']}, at most {train['max_length']} tokens, {precision}.",
        *(f"Cut to that: {n:,} of {rows[name]:,} rows of {name}." for name, n in cut.items() if n),
        *([f"Most frequent class: {text.score(constant)}."] if constant is not None else []),
    ]


def _scores(sweep: Sweep, rows: list[Row]) -> Table:
    headers = ["Mapping", "Runs", "Failed", "Diverged", "One class", "Mean ± sd", "Difference"]
    headers += ["95 % interval", "p", "Holm p", "Verdict", "Detectable (one test)"]
    drawn = _unequal_grid(sweep)
    headers += [f"Best of {drawn}"] if drawn else []
    printed = any(row.published is not None for row in rows)
    if printed:
        headers += ["Paper", "Paper: difference"]
    base = next(row.published for row in rows if row.mapping == BASELINE)
    lines = []
    for row in rows:
        count = f"{len(row.scores)} of {sweep.sweep.seeds}"
        line = [row.mapping, count, *map(str, (row.failed, row.diverged, row.one_class))]
        mean = estimate(100 * score for score in row.scores.values())
        line += [mean.text("{:.2f}") if mean else text.MISSING, *_difference_columns(row)]
        line += [_expected_best(sweep, row, drawn)] if drawn else []
        lines.append(line + (_paper_columns(row, base) if printed else []))
    caption = (
        "Scores. Runs: those that count. Failed and diverged: of all stages. One class: runs that "
        "predict a single class, which have not learned."
    )
    if drawn:
        caption += f" Best of {drawn}: expected best of so many points, the smallest grid."
    if printed:
        caption += f" Paper: {published.SOURCE}; compare differences, not levels."
    return Table(caption, headers, lines)


def _unequal_grid(sweep: Sweep) -> int | None:
    """Return the size of the smallest grid; None for the fair protocol or equal grids."""
    sizes = {sweep.searches(mapping) for mapping in sweep.mappings}
    return None if sweep.fair or len(sizes) == 1 else min(sizes)


def _expected_best(sweep: Sweep, row: Row, drawn: int) -> str:
    scores = [record.score for record in sweep.searched(row.task, row.mapping)]
    return text.score(expected_best(scores)[drawn - 1] if len(scores) >= drawn else None)


def _difference_columns(row: Row) -> list[str]:
    found = row.difference
    if found is None:
        return [text.NOTHING if row.mapping == BASELINE else text.MISSING] * 6
    return [
        text.signed(found.value),
        text.interval(found.low, found.high),
        text.probability(found.p),
        text.probability(row.holm),
        row.verdict,
        text.score(found.detectable),
    ]


def _paper_columns(row: Row, base: float | None) -> list[str]:
    if row.published is None:
        return [text.MISSING, text.MISSING]
    if base is None or row.mapping == BASELINE:
        return [f"{row.published:.2f}", text.NOTHING]
    return [f"{row.published:.2f}", text.signed((row.published - base) / 100)]


def _costs(rows: list[Row]) -> Table:
    unit = "CPU" if all(row.cpu for row in rows if row.devices) else "wall"
    if len({row.cpu for row in rows if row.devices}) > 1:
        unit = "CPU or wall"
    headers = ["Mapping", "Setting", "Exact zeros", f"Training, {unit} seconds"]
    headers += ["Relative to softmax", "Peak memory, MiB", "Other metrics"]
    return Table(
        "Settings of the runs that count, and what they cost (means).",
        headers,
        [
            [
                row.mapping,
                _settings(row.settings),
                text.MISSING if row.sparsity is None else f"{100 * row.sparsity:.1f} %",
                text.number(row.seconds),
                text.number(row.ratio, "{:.2f}"),
                text.number(row.memory, "{:,.0f}"),
                ", ".join(f"{n} {text.score(v)}" for n, v in row.metrics.items()) or text.NOTHING,
            ]
            for row in rows
        ],
    )


def _settings(settings: tuple[Setting, ...]) -> str:
    if not settings:
        return text.MISSING
    told = []
    for setting in settings:
        params = (f"{name} {text.plain(value)}" for name, value in setting.params.items())
        words = ", ".join([f"lr {text.plain(setting.learning_rate)}", *params])
        if len(settings) > 1:
            seeds = text.listing([str(seed) for seed in setting.seeds])
            words += f" (seed {seeds})"
        told.append(words)
    return "; ".join(told)


def _mappings(sweep: Sweep) -> Table:
    lines = []
    for label, candidate in sweep.sweep.mappings.items():
        params = (f"{name}: {_tried(value)}" for name, value in candidate.params.items())
        lines.append(
            [
                label,
                candidate.name,
                "; ".join(params) or text.NOTHING,
                _ramp(candidate.schedule),
                _learned(candidate),
                "all" if candidate.layers is None else _tried(candidate.layers),
                str(sweep.searches(label)),
            ]
        )
    searches = "Trials" if sweep.fair else "Grid points for each seed"
    headers = ["Mapping", "Function", "Values tried", "Schedule", "Learned", "Layers", searches]
    rates = ", ".join(map(text.plain, sweep.sweep.learning_rates))
    return Table(f"Learning rates tried for all: {rates}.", headers, lines)


def _tried(value: Any) -> str:
    return ", ".join(map(text.plain, value)) if isinstance(value, list) else text.plain(value)


def _ramp(schedule: ScheduleConfig | None) -> str:
    if schedule is None:
        return text.NOTHING
    return (
        f"{schedule.parameter} from {text.plain(schedule.initial)}, {schedule.shape}, "
        f"{text.plain(schedule.begin)} to {text.plain(schedule.end)} of training"
    )


def _learned(candidate: CandidateConfig) -> str:
    if not candidate.learn:
        return text.NOTHING
    return f"{', '.join(candidate.learn)} by {candidate.per}"


def _environment(sweep: Sweep) -> list[str]:
    finished = [results_of(record) for record in sweep.records if record.results]
    devices = sweep.devices
    packages: dict[str, set[str]] = {}
    for results in finished:
        for package, version in results["versions"].items():
            packages.setdefault(package, set()).add(version)
    versions = [f"{package} {' / '.join(sorted(found))}" for package, found in packages.items()]
    lines = [
        f"Model: {sweep.sweep.model}.",
        f"Device: {'; '.join(devices) or text.MISSING}.",
        f"Versions: {', '.join(versions) or text.MISSING}.",
        f"Protocol {sweep.sweep.protocol}, {text.counted(sweep.sweep.seeds, 'seed')}"
        + (f", {text.counted(sweep.sweep.trials, 'trial')}." if sweep.fair else "."),
    ]
    if len(devices) > 1:
        lines.append("Runs were done on several devices: do not compare their times.")
    return lines


def _unfinished(sweep: Sweep) -> Table:
    lines = [
        [
            *(record.task, record.mapping, f"{record.stage} {record.index}", record.status),
            ((record.error or "").strip() or "no reason given").splitlines()[-1],
        ]
        for record in sweep.records
        if record.status != "finished"
    ]
    return Table("The last line of each error.", ["Task", "Mapping", "Run", "End", "Error"], lines)

"""The blocks of the report."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from engine.config import ScheduleConfig
from glue.report import published
from glue.report.notes import notes
from glue.report.plots import make_plots
from glue.report.runs import Sweep, first_split, results_of
from glue.report.table import Row, Setting, is_cpu, labels, majority
from glue.report.verdict import status, verdict
from glue.sweep import BASELINE, CandidateConfig
from sparse_attn.reports import text
from sparse_attn.reports.forest import forest
from sparse_attn.reports.page import Block, Bullets, Heading, Plot, Status, Table
from sparse_attn.reports.seed_statistics import Difference, estimate


def blocks(sweep: Sweep, rows: list[Row]) -> list[Block]:
    """The report; `rows` come from `make_rows`."""
    answer, *more = verdict(sweep, rows)
    found: list[Block] = [*map(Status, status(sweep)), answer, *_differences(rows)]
    found += [Bullets(more), overview(sweep, rows)]
    for task in sweep.tasks:
        of_task = [row for row in rows if row.task == task]
        found += [Heading(task), _sizes(sweep, task), *_majority(sweep, task)]
        found += [_scores(sweep, of_task), _costs(of_task), *make_plots(sweep, task)]
    found += [Heading("Mappings"), _mappings(sweep)]
    found += [Heading("Methods"), Bullets(_environment(sweep)), *notes(sweep)]
    unfinished = _unfinished(sweep)
    if unfinished.rows:
        found += [Heading("Runs that failed or diverged"), unfinished]
    if sweep.faults:
        found += [Heading("Records that could not be used"), Bullets(sweep.faults)]
    return found


def _differences(rows: list[Row]) -> list[Plot]:
    """A forest plot of all differences from softmax, if any."""
    found: dict[str, dict[str, Difference]] = defaultdict(dict)
    for row in rows:
        if row.difference:
            found[row.task][row.mapping] = row.difference.scaled(100)
    settled = [(row.task, row.mapping) for row in rows if row.significant]
    figure = forest(found, "points above softmax", settled)
    caption = (
        "Mean difference of scores in points with its 95 % interval. Filled: significant after "
        "correction; open: not settled."
    )
    return [Plot("differences", "Difference from softmax", caption, figure)] if figure else []


def overview(sweep: Sweep, rows: list[Row]) -> Table:
    by_cell = {(row.task, row.mapping): row for row in rows}
    lines = []
    for mapping in sweep.mappings:
        cells = [by_cell[task, mapping] for task in sweep.tasks]
        lines.append([mapping, *map(_short, cells)])
    return Table(
        "Mean score, and in brackets the difference to softmax over the seeds that both have; * "
        "marks a significant one.",
        ["Mapping", *sweep.tasks],
        lines,
    )


def _short(row: Row) -> str:
    if row.difference is None:
        return text.score(row.mean)
    star = "*" if row.significant else ""
    return f"{text.score(row.mean)} ({text.signed(row.difference.value)}{star})"


def _sizes(sweep: Sweep, task: str) -> str:
    record = sweep.first(task)
    if record is None:
        return "No run of this task has finished."
    train, split = record.config["train"], first_split(record)
    precision = train["mixed_precision"]
    length = (
        f"{train['epochs']:g} epoch{'s' if train['epochs'] != 1 else ''}"
        if train["max_steps"] is None
        else f"{train['max_steps']} steps"
    )
    return (
        f"Score: {sweep.metric(task)} x 100 on {split}. "
        f"{results_of(record)['rows']['train']:,} training rows, "
        f"{len(labels(record)):,} rows in {split}, {length}, "
        f"batches of {train['batch_size']}, at most {train['max_length']} tokens, "
        f"{'fp32' if precision == 'no' else precision}."
    )


def _majority(sweep: Sweep, task: str) -> list[str]:
    score = majority(sweep, task)
    if score is None:
        return []
    return [
        f"Always the most frequent class scores {text.score(score)}: a mapping near that has not "
        "learned."
    ]


def _scores(sweep: Sweep, rows: list[Row]) -> Table:
    headers = ["Mapping", "Runs", "Failed", "Diverged", "Mean ± sd", "Difference", "95 % interval"]
    headers += ["p", "Holm p", "Significant", "Detectable (one test)"]
    printed = any(row.published is not None for row in rows)
    if printed:
        headers += ["Paper", "Paper: difference"]
    base = next(row.published for row in rows if row.mapping == BASELINE)
    lines = []
    for row in rows:
        count = f"{len(row.scores)} of {sweep.sweep.seeds}"
        line = [row.mapping, count, str(row.failed), str(row.diverged)]
        mean = estimate(100 * score for score in row.scores.values())
        line += [mean.text("{:.2f}") if mean else text.MISSING, *_sureness(row)]
        lines.append(line + (_paper(row, base) if printed else []))
    caption = "Scores. Runs: those that count; failed and diverged: of all stages."
    if printed:
        caption += f" Paper: {published.SOURCE}; compare differences, not levels."
    return Table(caption, headers, lines)


def _sureness(row: Row) -> list[str]:
    found = row.difference
    if found is None:
        return [text.NOTHING if row.mapping == BASELINE else text.MISSING] * 6
    one = found.n == 1
    return [
        text.signed(found.value),
        text.interval(found.low, found.high) + (" (one seed)" if one else ""),
        text.probability(found.p),
        text.probability(row.holm),
        "yes" if row.significant else "no",
        text.score(found.detectable),
    ]


def _paper(row: Row, base: float | None) -> list[str]:
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
        cpus = sum(map(is_cpu, devices))
        mixed = " (CPUs and GPUs)" if 0 < cpus < len(devices) else ""
        lines.append(f"Runs were done on several devices{mixed}: do not compare their times.")
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

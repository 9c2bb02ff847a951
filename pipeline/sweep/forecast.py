"""Forecast of a sweep: remaining runs, time and disk space."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.report.text import counted
from pipeline.sweep.config import Resources
from pipeline.sweep.plan import Plan, PlannedRun
from pipeline.sweep.pool import Failure, environments
from pipeline.sweep.records import Record, read_records
from pipeline.sweep.run import make_pool

LARGEST_RECORD = 1.0  # MB; upper bound over all experiments


def forecast(
    folder: Path,
    plan: Plan,
    seconds: Callable[[PlannedRun], float | None],
    resources: Resources,
) -> list[str]:
    """The forecast as lines for the terminal; writes nothing.

    Args:
        folder: output_dir of the sweep, possibly with some records.
        plan: the runs.
        seconds: estimates the time of a run by a short trial, if available; called in another
            process, for tasks without a finished run.
        resources: where to run.
    """
    found = plan.own(read_records(folder)).by_hash
    done = {key: record for key, record in found.items() if record.status != "failed"}
    ended = plan.records(done)
    due = {cell: plan.size(cell, done) - len(ended[cell]) for cell in plan.cells}
    lines = [f"runs: {sum(due.values())} of {plan.expected(done)} are due"]
    for mapping in dict.fromkeys(mapping for _, mapping in due):
        cells = [f"{task} {count}" for (task, label), count in due.items() if label == mapping]
        lines.append(f"  {mapping}: {', '.join(cells)}")
    slots = 1 if resources.address else len(environments(resources))
    times = _times(plan, list(done.values()), seconds, resources)
    if None in times.values():
        lines.append("time: not known before the first run has finished")
    else:
        total = sum(count * (times[task] or 0) for (task, _), count in due.items()) / slots
        lines.append(
            f"time: about {timedelta(seconds=round(total))}, {counted(slots, 'run')} at once"
        )
    free = shutil.disk_usage(_existing(folder)).free / 1e9
    most = LARGEST_RECORD * sum(due.values())
    lines.append(f"disk: at most {most:,.0f} MB of records, no weights; {free:,.1f} GB are free")
    return lines


def _times(
    plan: Plan,
    done: list[Record],
    seconds: Callable[[PlannedRun], float | None],
    resources: Resources,
) -> dict[str, float | None]:
    """Seconds per run, by task."""
    first = {task: runs[0] for (task, _), runs in reversed(plan.first.items())}
    times: dict[str, float | None] = {}
    for task in first:
        known = [_seconds(r.results) for r in done if r.task == task and r.results]
        if known:
            times[task] = fmean(known)

    def untold() -> list[PlannedRun]:
        return [run for task, run in first.items() if task not in times]

    with make_pool(seconds, resources, fresh=True) as pool:
        for run, outcome in pool.results(untold, lambda _: None):
            if isinstance(outcome, Failure):
                raise ValueError(f"{run}: {outcome.error.strip().splitlines()[-1]}")
            times[run.task] = outcome
    return times


def _seconds(results: dict[str, Any]) -> float:
    """Seconds of a run; GLUE records training separately."""
    found = results["seconds"]
    return float(found["total"] if isinstance(found, dict) else found)


def _existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())

"""Forecast of a sweep before it starts: runs left, time and disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.plan import PlannedRun, SweepPlan
from sparse_attn.engine.sweep.pool import Failure, environments
from sparse_attn.engine.sweep.records import Record, read_records
from sparse_attn.engine.sweep.run import make_pool

TYPICAL_RECORD = 0.1  # MB; a record of GLUE has a prediction for each example


def forecast(
    folder: Path,
    plan: SweepPlan,
    seconds: Callable[[PlannedRun], float | None] | None,
    resources: Resources,
) -> list[str]:
    """Return the forecast as lines for the terminal; write nothing.

    Args:
        folder: output_dir of the sweep, which may hold some of its records.
        plan: the runs.
        seconds: times a run by a short trial in another process; used for tasks without a finished
            run. None if no trial can be made.
        resources: machine or cluster that will do the runs.
    """
    own = plan.own(read_records(folder))
    done = {key: record for key, record in own.by_hash.items() if record.status != "failed"}
    ended = plan.records(done)
    due = {cell: plan.size(cell, done) - len(ended[cell]) for cell in plan.cells}
    lines = [f"Left out: {fault}." for fault in own.faults]
    lines.append(f"runs: {sum(due.values())} of {plan.expected(done)} are due")
    for mapping in dict.fromkeys(mapping for _, mapping in due):
        cells = [f"{task} {count}" for (task, label), count in due.items() if label == mapping]
        lines.append(f"  {mapping}: {', '.join(cells)}")
    times = _times(plan, list(done.values()), seconds, resources)
    if None in times.values():
        lines.append("time: not known before the first run has finished")
    else:
        total = sum(count * (times[task] or 0) for (task, _), count in due.items())
        slots = 1 if resources.address else len(environments(resources))
        about = timedelta(seconds=round(total / slots))
        at_once = "one run after another" if slots == 1 else f"{slots} runs at once"
        lines.append(f"time: about {about}, {at_once}")
    free = shutil.disk_usage(_nearest_existing(folder)).free / 1e9
    most = TYPICAL_RECORD * sum(due.values())
    lines.append(f"disk: about {most:,.0f} MB of records, no weights; {free:,.1f} GB are free")
    return lines


def _times(
    plan: SweepPlan,
    done: list[Record],
    seconds: Callable[[PlannedRun], float | None] | None,
    resources: Resources,
) -> dict[str, float | None]:
    """Return the seconds of a run for each task."""
    first = {task: runs[0] for (task, _), runs in reversed(plan.first.items())}
    known: dict[str, float] = {}
    for task in first:
        taken = [_seconds(r.results) for r in done if r.task == task and r.results]
        if taken:
            known[task] = fmean(taken)

    if seconds is None:
        mean = fmean(known.values()) if known else None
        return {task: known.get(task, mean) for task in first}

    def without_time() -> list[PlannedRun]:
        return [run for task, run in first.items() if task not in times]

    times: dict[str, float | None] = dict(known)
    with make_pool(seconds, resources, fresh=True) as pool:
        for run, outcome in pool.results(without_time, lambda _: None):
            if isinstance(outcome, Failure):
                raise ValueError(f"{run}: {outcome.error.strip().splitlines()[-1]}")
            times[run.task] = outcome
    return times


def _seconds(results: dict[str, Any]) -> float:
    """Return the seconds of a run and of its start, which older records lack.

    GLUE also records the training time separately.
    """
    found = results["seconds"]
    taken = found["total"] if isinstance(found, dict) else found
    return float(taken + results.get("startup_seconds", 0.0))


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())

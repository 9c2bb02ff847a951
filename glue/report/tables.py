"""Tables of the tasks and the mappings of a sweep."""

from __future__ import annotations

from typing import Any

from sparse_attn.engine.config import ScheduleConfig
from sparse_attn.evaluation.tasks import REGRESSION_METRICS
from sparse_attn.reports import text
from sparse_attn.reports.page import Table

from ..data import CUT
from ..scoring import baseline
from ..sweep import CandidateConfig
from .runs import Sweep, first_split, labels, results_of


def tasks_table(sweep: Sweep) -> Table:
    """Tabulate metric, data and training of each task that has a finished run."""
    headers = ["Task", "Metric", "Split", "Rows", "Most frequent class", "Training rows", "Epochs"]
    headers += ["Batch size", "Tokens at most", "Precision", "Rows cut"]
    rows = []
    for task in sweep.tasks:
        record = sweep.first(task)
        if record is None:
            continue
        train, run = record.config["train"], results_of(record)
        steps = train["max_steps"]
        rows.append(
            [
                *(task, str(sweep.metric(task)), first_split(run), f"{len(labels(run)):,}"),
                text.score(majority(sweep, task)),
                f"{run['rows']['train']:,}",
                f"{train['epochs']:g}" if steps is None else f"{steps} steps",
                str(train["batch_size"]),
                str(train["max_length"]),
                "fp32" if train["mixed_precision"] == "no" else train["mixed_precision"],
                ", ".join(f"{name} {n:,}" for name, n in run.get(CUT, {}).items() if n)
                or text.NOTHING,
            ]
        )
    return Table("Tasks.", headers, rows)


def majority(sweep: Sweep, task: str) -> float | None:
    """Return the score of always predicting the dev set's most frequent class.

    None for a regression, or before a run on the dev set has finished.
    """
    record, metric = sweep.first(task), sweep.metric(task)
    if record is None or record.stage == "trial" or metric in (None, *REGRESSION_METRICS):
        return None
    return baseline(labels(results_of(record)), metric)[metric]


def mappings_table(sweep: Sweep) -> Table:
    """Tabulate what was tried for each mapping."""
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
    return Table("Mappings.", headers, lines)


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

"""Further numbers of each mapping on a task: cost, zeros, other metrics, published numbers."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.report import Column, mean_of
from sparse_attn.reports import text
from sparse_attn.reports.bootstrap import expected_best

from ..sweep import BASELINE
from .published import published
from .runs import Sweep, first_split, labels, predicted, results_of, setting_of


def columns(sweep: Sweep) -> list[Column]:
    """Return the columns of the table of settings and costs."""
    found = [
        Column("one_class", "One class", lambda cell: _one_class(sweep, cell)),
        Column("sparsity", "Exact zeros", mean_of(sweep, lambda r: sparsity(r)["mean"]), "{:.1%}"),
        Column("train_seconds", "Training, s", lambda cell: _seconds(sweep, cell), "{:,.1f}"),
        Column("seconds_ratio", "Relative to softmax", lambda cell: _ratio(sweep, cell), "{:.2f}"),
        Column(
            "peak_memory_mib",
            "Peak memory, MiB",
            mean_of(sweep, lambda run: run["peak_memory_mib"]),
            "{:,.0f}",
        ),
        Column("other_metrics", "Other metrics", lambda cell: _other_metrics(sweep, cell)),
    ]
    if sweep.fair:
        found.append(Column("by_chance", "Chosen by chance", lambda cell: by_chance(sweep, cell)))
    elif len(sizes := {sweep.searches(mapping) for mapping in sweep.mappings}) > 1:
        drawn = min(sizes)
        title = f"Expected best of {drawn} (the smallest grid)"
        found.append(
            Column(
                "expected_best", title, lambda cell: _expected_best(sweep, cell, drawn), "{:.2f}"
            )
        )
    if any(_published(sweep, cell) for cell in sweep.cells):
        found.append(Column("paper", "Paper", lambda cell: _published(sweep, cell), "{:.2f}"))
        found.append(
            Column("paper_difference", "Paper: difference", lambda c: _beyond(sweep, c), "{:+.2f}")
        )
    return found


def sparsity(run: dict[str, Any]) -> dict[str, Any]:
    """Return mean, per_layer and per_head of the exact zeros on the scored split."""
    found: dict[str, Any] = run["sparsity"][first_split(run)]
    return found


def by_chance(sweep: Sweep, cell: Cell) -> str:
    """Return yes if chance chose among the settings tried; only for accuracy.

    The best trial is at most one held-out row ahead of the other settings, or no better than the
    most frequent class.
    """
    trials = sorted(sweep.searched(cell), key=lambda trial: -trial.score)
    others = [trial for trial in trials if setting_of(trial) != setting_of(trials[0])]
    if not others or sweep.metric(cell[0]) != "accuracy":
        return text.NOTHING
    rows = labels(results_of(trials[0]))
    best, next_best = (round(len(rows) * trial.score) for trial in (trials[0], others[0]))
    chance = best - next_best <= 1 or best <= max(Counter(rows).values())
    return "yes" if chance else "no"


def _one_class(sweep: Sweep, cell: Cell) -> int:
    return sum(len(set(predicted(run))) == 1 for run in sweep.finished(cell))


def _seconds(sweep: Sweep, cell: Cell) -> float | None:
    runs = sweep.finished(cell)
    on_cpu = all(" CPU, " in run["device"] for run in runs)  # as machine.device_name names one
    clock = "train_cpu" if on_cpu else "train"
    return fmean(run["seconds"][clock] for run in runs) if runs else None


def _ratio(sweep: Sweep, cell: Cell) -> float | None:
    """Return the training time over softmax's on the same devices."""
    base = cell[0], BASELINE
    ours, theirs = ({run["device"] for run in sweep.finished(one)} for one in (cell, base))
    seconds, reference = _seconds(sweep, cell), _seconds(sweep, base)
    if seconds is None or not reference or ours != theirs:
        return None
    return seconds / reference


def _other_metrics(sweep: Sweep, cell: Cell) -> str:
    runs = sweep.finished(cell)
    if not runs:
        return text.NOTHING
    main = {runs[0]["main_metric"], f"{first_split(runs[0])}/{runs[0]['main_metric']}"}
    names = [n for n in runs[0]["metrics"] if n not in main and not n.endswith("loss")]
    means = {name: fmean(run["metrics"][name] for run in runs) for name in names}
    return ", ".join(f"{name} {text.score(mean)}" for name, mean in means.items()) or text.NOTHING


def _expected_best(sweep: Sweep, cell: Cell, drawn: int) -> float | None:
    scores = [100 * record.score for record in sweep.searched(cell)]
    return expected_best(scores)[drawn - 1] if len(scores) >= drawn else None


def _published(sweep: Sweep, cell: Cell) -> float | None:
    task, mapping = cell
    if sweep.metric(task) != "accuracy":
        return None
    return published(task, sweep.sweep.mappings[mapping])


def _beyond(sweep: Sweep, cell: Cell) -> float | None:
    """Return the paper's difference from softmax."""
    ours, base = _published(sweep, cell), _published(sweep, (cell[0], BASELINE))
    return None if ours is None or base is None or cell[1] == BASELINE else ours - base

"""One row per task and mapping: scores, differences and cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np

from sparse_attn.engine.sweep.records import Record
from sparse_attn.engine.sweep.results import ended
from sparse_attn.evaluation.tasks import REGRESSION_METRICS
from sparse_attn.reports.bootstrap import compare
from sparse_attn.reports.seed_statistics import VERDICTS, Difference, holm

from ..scoring import baseline
from ..sweep import BASELINE
from .published import published
from .runs import Sweep, first_split, results_of


@dataclass(frozen=True)
class Setting:
    """Hyper-parameters and the seeds run with them."""

    learning_rate: float
    params: dict[str, Any]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """Results of one mapping on one task. Scores are shares; None if unknown.

    scores: scores of the runs that count, by seed.
    one_class: number of these runs that predict one class only.
    metrics: means of the task's other metrics.
    failed, diverged: numbers of runs, over all stages.
    difference: from softmax, over common seeds.
    holm: its p after Holm's correction over all differences of the table.
    settings: settings of the runs that count.
    sparsity: share of exact zeros in attention on the scored split.
    seconds: training time: CPU time if `cpu`, else wall-clock time.
    ratio: seconds divided by those of softmax on the same device.
    published: the paper's accuracy in percent.
    """

    task: str
    mapping: str
    name: str
    metric: str | None
    scores: dict[int, float]
    one_class: int
    metrics: dict[str, float]
    failed: int
    diverged: int
    settings: tuple[Setting, ...]
    sparsity: float | None
    devices: tuple[str, ...]
    seconds: float | None
    cpu: bool
    memory: float | None
    published: float | None
    difference: Difference | None = None
    holm: float | None = None
    ratio: float | None = None

    @property
    def mean(self) -> float | None:
        return _mean(self.scores.values())

    @property
    def sd(self) -> float | None:
        return stdev(self.scores.values()) if len(self.scores) > 1 else None

    @property
    def significant(self) -> bool:
        """Return whether the verdict is better or worse."""
        return self.verdict in (VERDICTS[1], VERDICTS[-1])

    @property
    def verdict(self) -> str:
        """Return better, worse or not significant, after correction; one pair is not judged."""
        if self.difference is None or self.difference.n == 1:
            return VERDICTS[None]
        return self.difference.verdict(p=1.0 if self.holm is None else self.holm)


def make_rows(sweep: Sweep) -> list[Row]:
    """Return the rows of all tasks, in the order of the sweep."""
    rows: list[Row] = []
    for task in sweep.tasks:
        plain = {mapping: _row(sweep, task, mapping) for mapping in sweep.mappings}
        base = plain[BASELINE]
        for mapping, row in plain.items():
            ratio = None
            if row.seconds is not None and base.seconds and row.devices == base.devices:
                ratio = row.seconds / base.seconds
            rows.append(replace(row, ratio=ratio, difference=_difference(sweep, task, mapping)))
    p = [row.difference.p if row.difference else None for row in rows]
    return [replace(row, holm=q) for row, q in zip(rows, holm(p), strict=True)]


def _row(sweep: Sweep, task: str, mapping: str) -> Row:
    cell, scored = sweep.cells[task, mapping], sweep.scored(task, mapping)
    candidate = sweep.sweep.mappings[mapping]
    runs = [results_of(record) for record in scored.values()]
    devices = tuple(sorted({run["device"] for run in runs}))
    cpu = bool(devices) and all(is_cpu(device) for device in devices)
    metric, count = sweep.metric(task), ended(cell)
    return Row(
        task=task,
        mapping=mapping,
        name=candidate.name,
        metric=metric,
        scores={seed: record.score for seed, record in scored.items()},
        one_class=sum(len(set(predicted(record))) == 1 for record in scored.values()),
        metrics=_other_metrics(list(scored.values())),
        failed=count["failed"],
        diverged=count["diverged"],
        settings=_settings(scored),
        sparsity=_mean(sparsity(record)["mean"] for record in scored.values()),
        devices=devices,
        seconds=_mean(run["seconds"]["train_cpu" if cpu else "train"] for run in runs),
        cpu=cpu,
        memory=_mean(run["peak_memory_mib"] for run in runs),
        published=published(task, candidate) if metric == "accuracy" else None,
    )


def _difference(sweep: Sweep, task: str, mapping: str) -> Difference | None:
    if mapping == BASELINE:
        return None
    ours, base = sweep.scored(task, mapping), sweep.scored(task, BASELINE)
    seeds = [seed for seed in ours if seed in base]
    # both runs of a pair must have the same examples
    seeds = [seed for seed in seeds if labels(ours[seed]) == labels(base[seeds[0]])]
    seeds = [seed for seed in seeds if labels(base[seed]) == labels(base[seeds[0]])]
    if not seeds:
        return None
    found = compare(
        results_of(ours[seeds[0]])["main_metric"],
        np.array(labels(base[seeds[0]])),
        np.array([predicted(ours[seed]) for seed in seeds]),
        np.array([predicted(base[seed]) for seed in seeds]),
    )
    # with one seed, p is about that pair of runs and not about the mapping
    return found if len(seeds) > 1 else found._replace(p=None)


def _settings(scored: dict[int, Record]) -> tuple[Setting, ...]:
    found: list[Setting] = []
    for seed, record in scored.items():
        rate, params = _setting(record)
        for place, setting in enumerate(found):
            if (setting.learning_rate, setting.params) == (rate, params):
                found[place] = replace(setting, seeds=(*setting.seeds, seed))
                break
        else:
            found.append(Setting(rate, params, (seed,)))
    return tuple(found)


def _setting(record: Record) -> tuple[float, dict[str, Any]]:
    return record.config["train"]["learning_rate"], record.config["mapping"]["params"]


def chosen_by_chance(sweep: Sweep, task: str) -> list[str]:
    """Return the mappings for which chance chose among the settings tried.

    The best trial is at most one held-out row ahead of the other settings, or no better than the
    most frequent class. Only for accuracy under the fair protocol.
    """
    found = []
    for mapping in sweep.mappings if sweep.fair and sweep.metric(task) == "accuracy" else ():
        trials = sorted(sweep.searched(task, mapping), key=lambda trial: -trial.score)
        others = [trial for trial in trials if _setting(trial) != _setting(trials[0])]
        if others:
            rows = labels(trials[0])
            best, next_best = (round(len(rows) * trial.score) for trial in (trials[0], others[0]))
            if best - next_best <= 1 or best <= max(Counter(rows).values()):
                found.append(mapping)
    return found


def _other_metrics(records: list[Record]) -> dict[str, float]:
    if not records:
        return {}
    first = results_of(records[0])
    main = {first["main_metric"], f"{first_split(records[0])}/{first['main_metric']}"}
    names = [n for n in first["metrics"] if n not in main and not n.endswith("loss")]
    return {name: fmean(results_of(r)["metrics"][name] for r in records) for name in names}


def labels(record: Record) -> list[float]:
    """Return the labels of the scored split."""
    found: list[float] = results_of(record)["predictions"][first_split(record)]["labels"]
    return found


def predicted(record: Record) -> list[float]:
    """Return the prediction for each example of the scored split."""
    found: list[float] = results_of(record)["predictions"][first_split(record)]["predicted"]
    return found


def sparsity(record: Record) -> dict[str, Any]:
    """Return mean, per_layer and per_head of the exact zeros on the scored split."""
    found: dict[str, Any] = results_of(record)["sparsity"][first_split(record)]
    return found


def is_cpu(device: str) -> bool:
    """Return whether `sparse_attn.system.machine.device_name` gives this name to a CPU."""
    return " CPU, " in device


def majority(sweep: Sweep, task: str) -> float | None:
    """Return the score of always predicting the dev set's most frequent class.

    None for a regression, or before a run on the dev set has finished.
    """
    record, metric = sweep.first(task), sweep.metric(task)
    if record is None or record.stage == "trial" or metric in (None, *REGRESSION_METRICS):
        return None
    return baseline(labels(record), metric)[metric]


def _mean(values: Any) -> float | None:
    found = list(values)
    return fmean(found) if found else None

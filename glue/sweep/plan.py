"""Which runs a GLUE sweep consists of."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from glue.config import MappingConfig, RunConfig
from glue.sweep.config import SweepConfig, TaskConfig
from pipeline.sweep.config import FIRST_TRIAL_SEED
from pipeline.sweep.plan import Cell, Plan, PlannedRun


def make_plan(sweep: SweepConfig) -> Plan:
    """Trials and then final runs under the fair protocol, one grid under the paper's."""
    tasks = dict(zip(sweep.task_names, sweep.tasks, strict=True))
    cells = list(itertools.product(tasks, sweep.mappings))
    if sweep.protocol == "paper":
        return Plan({cell: list(_grid(sweep, tasks[cell[0]], *cell)) for cell in cells})
    return Plan(
        {cell: list(_trials(sweep, tasks[cell[0]], *cell)) for cell in cells},
        partial(_finals, sweep, tasks),
        sweep.seeds,
    )


def settings(plan: Plan) -> Iterator[tuple[str, MappingConfig]]:
    """Every label with its mapping at every value it may be run with."""
    for (_, label), runs in plan.first.items():
        for run in runs:
            yield label, run.config.mapping


def _trials(sweep: SweepConfig, task: str, name: str, mapping: str) -> Iterator[PlannedRun]:
    """Trial k: learning rate, seed (the same for every mapping) and values go round."""
    candidate, rates = sweep.mappings[mapping], sweep.learning_rates
    combinations = candidate.combinations
    # an order that has nothing to do with that of the learning rates, always the same
    random.Random(",".join(candidate.values)).shuffle(combinations)
    whole = math.lcm(len(rates), len(combinations))
    for k in range(sweep.trials):
        # after a whole round the same pairs would come again: one place on
        params = combinations[(k + k // whole) % len(combinations)]
        config = _config(
            sweep,
            task,
            candidate.with_params(params),
            learning_rate=rates[k % len(rates)],
            seed=FIRST_TRIAL_SEED + k // len(rates),
        )
        config = replace(config, selection=sweep.selection, evaluate="epoch")
        yield PlannedRun(name, mapping, "trial", k, config)


def _finals(
    sweep: SweepConfig, tasks: dict[str, str], cell: Cell, best: PlannedRun
) -> list[PlannedRun]:
    """The best trial's setting with every seed."""
    mapping, rate = best.config.mapping, best.config.train.learning_rate
    return [
        PlannedRun(
            *cell,
            "final",
            seed,
            _config(sweep, tasks[cell[0]], mapping, learning_rate=rate, seed=seed),
        )
        for seed in range(sweep.seeds)
    ]


def _grid(sweep: SweepConfig, task: str, name: str, mapping: str) -> Iterator[PlannedRun]:
    """Every learning rate with every value of the parameters, for every seed."""
    candidate = sweep.mappings[mapping]
    points = itertools.product(range(sweep.seeds), sweep.learning_rates, candidate.combinations)
    for k, (seed, rate, params) in enumerate(points):
        config = _config(sweep, task, candidate.with_params(params), learning_rate=rate, seed=seed)
        yield PlannedRun(name, mapping, "grid", k, replace(config, evaluate="epoch"))


def _config(sweep: SweepConfig, task: str, mapping: MappingConfig, **train: Any) -> RunConfig:
    own = sweep.tasks[task] or TaskConfig()
    if own.epochs is not None:
        train["epochs"] = own.epochs
    return RunConfig(
        task=task,
        model=sweep.model,
        output_dir="",
        data_dir=sweep.data_dir,
        train_rows=own.train_rows,
        evaluate="end",
        keep_model=False,
        mapping=mapping,
        train=replace(sweep.train, **train),
    )

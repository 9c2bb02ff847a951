"""The runs of a sweep."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED
from sparse_attn.engine.sweep.plan import Cell, SweepPlan, best_of, grid

from .config import MappingConfig, RunConfig
from .sweep import CandidateConfig, SweepConfig, TaskConfig


def make_plan(sweep: SweepConfig) -> SweepPlan:
    """Plan trials and then final runs under the fair protocol, or one grid under the paper's."""
    # labelled files are one task, which is not given by name
    tasks = dict(zip(sweep.task_names, sweep.tasks or [None], strict=True))
    runs = _trials if sweep.protocol == "fair" else _grid
    cells: dict[Cell, list[RunConfig]] = {
        (name, mapping): list(runs(sweep, tasks[name], sweep.mappings[mapping]))
        for name, mapping in itertools.product(tasks, sweep.mappings)
    }
    return best_of(cells, _final, sweep.seeds) if sweep.protocol == "fair" else grid(cells)


def _trials(
    sweep: SweepConfig, task: str | None, candidate: CandidateConfig
) -> Iterator[RunConfig]:
    """Yield the trials; learning rates, seeds (equal for every mapping) and values take turns."""
    rates, combinations = sweep.learning_rates, candidate.combinations
    # a fixed order, unrelated to that of the learning rates
    random.Random(",".join(candidate.values)).shuffle(combinations)
    round_length = math.lcm(len(rates), len(combinations))
    for k in range(sweep.trials):
        # shift by one after every round, or the same pairs would come again
        params = combinations[(k + k // round_length) % len(combinations)]
        seed = FIRST_TRIAL_SEED + k // len(rates)
        config = _config(sweep, task, candidate.with_params(params), rates[k % len(rates)], seed)
        yield replace(config, selection=sweep.selection)


def _final(best: RunConfig, seed: int) -> RunConfig:
    """Return a run of the best trial's setting with this seed, on the whole training set."""
    return replace(best, selection=None, evaluate="end", train=replace(best.train, seed=seed))


def _grid(sweep: SweepConfig, task: str | None, candidate: CandidateConfig) -> Iterator[RunConfig]:
    """Yield every learning rate with every value of the parameters, for every seed."""
    points = itertools.product(range(sweep.seeds), sweep.learning_rates, candidate.combinations)
    for seed, rate, params in points:
        yield _config(sweep, task, candidate.with_params(params), rate, seed)


def _config(
    sweep: SweepConfig, task: str | None, mapping: MappingConfig, learning_rate: float, seed: int
) -> RunConfig:
    own = (sweep.tasks[task] if sweep.tasks and task else None) or TaskConfig()
    train = replace(sweep.train, learning_rate=learning_rate, seed=seed)
    return RunConfig(
        **sweep.given_files,
        task=task,
        model=sweep.model,
        output_dir="",
        data_dir=sweep.data_dir,
        train_rows=own.train_rows,
        limit=sweep.limit,
        evaluate="epoch",
        keep_model=False,
        mapping=mapping,
        train=train if own.epochs is None else replace(train, epochs=own.epochs),
    )

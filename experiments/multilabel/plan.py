"""Which runs a sweep consists of: methods x data sets x seeds, learning rates first if several."""

from __future__ import annotations

import itertools
from typing import Any

from experiments.multilabel.config import SweepConfig
from pipeline.sweep.config import FIRST_TRIAL_SEED
from pipeline.sweep.plan import Cell, Plan, PlannedRun


def make_plan(config: SweepConfig) -> Plan:
    """Every seed at the one learning rate, or a trial of each rate and every seed at the best."""
    cells = list(itertools.product(config.data, config.methods))

    def seeds(cell: Cell, stage: Any, rate: float) -> list[PlannedRun]:
        return [
            PlannedRun(*cell, stage, seed, config.run(*cell, rate, seed))
            for seed in range(config.seeds)
        ]

    if len(config.learning_rates) == 1:
        return Plan({cell: seeds(cell, "grid", config.learning_rates[0]) for cell in cells})
    trials = {
        cell: [
            PlannedRun(*cell, "trial", k, config.run(*cell, rate, FIRST_TRIAL_SEED))
            for k, rate in enumerate(config.learning_rates)
        ]
        for cell in cells
    }
    return Plan(
        trials,
        lambda cell, best: seeds(cell, "final", best.config.train.learning_rate),
        config.seeds,
    )

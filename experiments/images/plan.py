"""Which runs a sweep consists of: losses x learning rates, then the best rate of each loss."""

from __future__ import annotations

from dataclasses import replace

from experiments.images.config import LossConfig, RunConfig
from experiments.images.sweep_config import SweepConfig, SweptLoss
from pipeline.sweep.config import FIRST_TRIAL_SEED
from pipeline.sweep.plan import Cell, Plan, PlannedRun


def make_plan(sweep: SweepConfig) -> Plan:
    """The trials of every loss, and how the best of them becomes the runs that count."""

    def choose(cell: Cell, best: PlannedRun) -> list[PlannedRun]:
        configs = [
            replace(best.config, test=True, train=replace(best.config.train, seed=seed))
            for seed in range(sweep.runs)
        ]
        return [PlannedRun(*cell, "final", k, config) for k, config in enumerate(configs)]

    trials: dict[Cell, list[PlannedRun]] = {
        (sweep.data.name, label): [
            PlannedRun(sweep.data.name, label, "trial", k, _trial(sweep, loss, rate))
            for k, rate in enumerate(loss.learning_rates)
        ]
        for label, loss in sweep.losses.items()
    }
    return Plan(trials, choose, sweep.runs)


def _trial(sweep: SweepConfig, loss: SweptLoss, learning_rate: float) -> RunConfig:
    return RunConfig(
        output_dir="",
        data=sweep.data,
        loss=LossConfig(loss.name, loss.params, loss.learn),
        network=sweep.network,
        train=replace(sweep.train, learning_rate=learning_rate, seed=FIRST_TRIAL_SEED),
        test=False,
        device=sweep.device,
    )

"""Losses x learning rates, then the best rate of each loss with many splits and seeds."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.images.config import LossConfig, RunConfig
from experiments.images.sweep_config import SweepConfig, SweptLoss
from experiments.images.train import assemble, prepare, train
from pipeline.fitting import DivergedError
from pipeline.sweep.config import Resources
from pipeline.sweep.plan import FIRST_TRIAL_SEED, Cell, Plan, PlannedRun
from pipeline.sweep.records import Records
from pipeline.sweep.run import run_sweep


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


def sweep(config: SweepConfig, resources: Resources) -> Records:
    """Do every run that has no record yet; raises as `run_sweep`."""
    plan = make_plan(config)
    return run_sweep(
        Path(config.output_dir),
        config.content(),
        plan,
        execute,
        resources,
        check=lambda: check_runs(plan),
        # starting a process takes longer than an epoch of a small data set
        fresh=False,
    )


def check_runs(plan: Plan) -> None:
    """Raise what a run would raise, before the first one starts."""
    for (_, label), trials in plan.first.items():
        try:
            # learning rates have been checked, and the rest is the same in all
            assemble(trials[0].config)
        except (ValueError, TypeError) as error:
            raise ValueError(f"losses.{label}: {error}") from None


def execute(run: PlannedRun) -> dict[str, Any]:
    """A run from beginning to end in the process that calls; its results."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            results = train(prepare(replace(run.config, output_dir=f"{folder}/run")))
        except DivergedError:
            return {"status": "diverged", "error": traceback.format_exc()}
    # the record has it
    del results["config"]
    return {"status": "finished", "results": results}

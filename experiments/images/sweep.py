"""Do the runs of a sweep: check them before the first one, and each where it is sent."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from experiments.images.plan import make_plan
from experiments.images.sweep_config import SweepConfig
from experiments.images.train import assemble, train_and_measure
from pipeline.fitting import DivergedError
from pipeline.sweep.config import Resources
from pipeline.sweep.plan import Plan, PlannedRun
from pipeline.sweep.records import Records
from pipeline.sweep.run import run_sweep


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
    """A run from beginning to end in the process that calls; its results, and no file."""
    try:
        results = train_and_measure(assemble(run.config))
    except DivergedError:
        return {"status": "diverged", "error": traceback.format_exc()}
    # the record has it
    del results["config"]
    return {"status": "finished", "results": results}

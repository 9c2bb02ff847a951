"""Do the runs of a sweep: check them before the first one, and each where it is sent."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from experiments.multilabel.config import SweepConfig
from experiments.multilabel.data.load import load_data
from experiments.multilabel.models import build_model
from experiments.multilabel.plan import make_plan
from experiments.multilabel.train import assemble
from pipeline.fitting import DivergedError
from pipeline.sweep.config import Resources
from pipeline.sweep.plan import PlannedRun
from pipeline.sweep.records import Records
from pipeline.sweep.run import run_sweep


def sweep(config: SweepConfig, resources: Resources) -> Records:
    """Do every run that has no record yet, and return all records; raises as `run_sweep`."""
    return run_sweep(
        Path(config.output_dir),
        config.content(),
        make_plan(config),
        execute,
        resources,
        check=lambda: check(config),
        # runs on synthetic rows take seconds
        fresh=any(data.synthetic is None for data in config.data.values()),
    )


def execute(run: PlannedRun) -> dict[str, Any]:
    """A run from beginning to end in the process that calls; its results."""
    try:
        return {"status": "finished", "results": assemble(run.config).run()}
    except DivergedError:
        return {"status": "diverged", "error": traceback.format_exc()}


def check(config: SweepConfig) -> None:
    """Raise what a run would raise for its data or method, before the first one starts."""
    for name, data in config.data.items():
        labels = len(load_data(data, 0).labels)
        for label, method in config.methods.items():
            try:
                method.sparsity_schedule()
                build_model(data, method, labels)
            except (ValueError, TypeError) as error:
                raise ValueError(f"methods.{label} on data.{name}: {error}") from None

"""`python -m glue sweep`: every run of a GLUE sweep that has no record yet."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from glue.data import load_task, subset
from glue.model import check_length, load_model, load_tokenizer, resolve_model
from glue.sweep.config import SweepConfig
from glue.sweep.plan import make_plan, settings
from glue.tasks import get_task
from glue.train import prepare, train
from pipeline.fitting import DivergedError
from pipeline.sweep.config import Resources
from pipeline.sweep.plan import Plan, PlannedRun
from pipeline.sweep.records import Records
from pipeline.sweep.run import run_sweep

# may differ between a sweep and its continuation
FREE = ("output_dir", "data_dir")


def sweep(config: SweepConfig, resources: Resources) -> Records:
    """Do what `run_sweep` does, and raise as it does."""
    plan = make_plan(config)
    return run_sweep(
        Path(config.output_dir),
        content_of(config),
        plan,
        execute,
        resources,
        check=lambda: check_runs(config, plan),
    )


def execute(run: PlannedRun) -> dict[str, Any]:
    """A run from beginning to end in the process that calls; its results."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            results = train(prepare(replace(run.config, output_dir=f"{folder}/run")))
        except DivergedError:
            return {"status": "diverged", "error": traceback.format_exc()}
    # the record has it, without the folder that is gone
    del results["config"]
    return {"status": "finished", "results": results}


def content_of(config: SweepConfig) -> dict[str, Any]:
    """What sweep.json holds."""
    content = {key: value for key, value in config.to_dict().items() if key not in FREE}
    return {"task_names": config.task_names, **content}


def check_runs(config: SweepConfig, plan: Plan) -> None:
    """Raise what a run would raise for its mapping, data or model, before the first one starts."""
    path = resolve_model(config.model)
    for name, own in config.tasks.items():
        task = get_task(name)
        rows = own.train_rows if own else None
        held_out = config.selection if config.protocol == "fair" else None
        subset(load_task(task, config.data_dir), rows, held_out)
        model = load_model(path, task)
        check_length(config.train.max_length, model, load_tokenizer(path))
    for label, mapping in settings(plan):
        try:
            mapping.schedule_of_run()
            mapping.patch(model)
        except (ValueError, TypeError) as error:
            raise ValueError(f"mappings.{label}: {error}") from None

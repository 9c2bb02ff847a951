"""`python -m glue sweep`: from a config to one record a run, whatever happens in between."""

from __future__ import annotations

import json
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import AutoTokenizer

from glue.checkpoints import differences, write_json
from glue.data import load_task, subset
from glue.metric import DivergedError
from glue.model import check_length, load_model, resolve_model
from glue.sweep.config import Resources, SweepConfig
from glue.sweep.plan import Plan, PlannedRun
from glue.sweep.records import (
    FOLDER,
    FORMAT,
    SWEEP_FILE,
    Record,
    Records,
    read_records,
    write_record,
)
from glue.sweep.spread import Failure, Pool
from glue.tasks import get_task
from glue.train import prepare, train

# may differ between a sweep and its continuation
FREE = ("output_dir",)


def run_sweep(config: SweepConfig, resources: Resources) -> Records:
    """Do every run of the sweep that has no record yet, and return all records.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the config, the data, the model or
            output_dir. No run has started then.
        OSError: a record could not be written. Those written before stay, and the same command
            goes on from them.
    """
    folder = Path(config.output_dir)
    plan = Plan(config)
    check_folder(config)
    check_runs(plan)
    with Pool(execute, resources) as pool:
        claim_folder(config)
        records = read_records(folder)
        for fault in records.faults:
            tqdm.write(f"warning: {fault}; that run is done again")
        done = keep_for_good(records)
        with tqdm(total=plan.total, initial=len(done), desc="Sweep", unit="run") as bar:
            _show(bar, done, pool.slots)
            for run, outcome in pool.results(lambda: plan.due(done)):
                record = run.record(**_outcome(outcome))
                write_record(folder, record)
                done[run.hash] = record
                bar.update()
                _show(bar, done, pool.slots, record)
    return read_records(folder)


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


def _outcome(outcome: dict[str, Any] | Failure) -> dict[str, Any]:
    if isinstance(outcome, Failure):
        return {"status": "failed", "error": outcome.error}
    return outcome


def keep_for_good(records: Records) -> dict[str, Record]:
    """The records that stand; the runs of the others are tried again.

    What failed says nothing of the mapping: a full disk, a lost machine. A failed trial stands all
    the same once final runs hang on the choice that was made without it.
    """
    chosen = {(r.task, r.mapping) for r in records.by_hash.values() if r.stage == "final"}
    return {
        key: record
        for key, record in records.by_hash.items()
        if record.status != "failed"
        or (record.stage == "trial" and (record.task, record.mapping) in chosen)
    }


def check_folder(config: SweepConfig) -> None:
    """Write nothing, and raise ValueError if output_dir is not this sweep's or free."""
    folder = Path(config.output_dir)
    file = folder / SWEEP_FILE
    if not file.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(
                f"output_dir={folder}: exists and is not the folder of a sweep; choose another"
            )
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"output_dir={folder}: {SWEEP_FILE} is not readable ({error}); delete that file if "
            "this is the sweep that the folder was made by, or choose another output_dir"
        ) from None
    different = differences(_content(config), found)
    if different:
        raise ValueError(
            f"output_dir={folder}: holds a sweep with another config ({'; '.join(different)}); "
            f"choose another output_dir. Runs that both have need not be done again: copy "
            f"{folder / FOLDER} there, they are known by their hash"
        )


def check_runs(plan: Plan) -> None:
    """Raise what a run would raise for its mapping, data or model, before the first one starts."""
    sweep = plan.sweep
    path = resolve_model(sweep.model)
    for name, own in sweep.tasks.items():
        task = get_task(name)
        rows = own.train_rows if own else None
        subset(load_task(task, sweep.data_dir), rows, sweep.selection)
        model = load_model(path, task)
        check_length(sweep.train.max_length, model, AutoTokenizer.from_pretrained(path))
    for label, mapping in plan.settings():
        try:
            mapping.schedule_of_run()
            mapping.patch(model)
        except (ValueError, TypeError) as error:
            raise ValueError(f"mappings.{label}: {error}") from None


def _content(config: SweepConfig) -> dict[str, Any]:
    """What sweep.json holds."""
    content = {key: value for key, value in config.to_dict().items() if key not in FREE}
    return {"format": FORMAT, "task_names": config.task_names, **content}


def claim_folder(config: SweepConfig) -> None:
    """Make output_dir this sweep's own."""
    folder = Path(config.output_dir)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    write_json(folder / SWEEP_FILE, _content(config))


def _show(
    bar: tqdm[Any], done: dict[str, Record], slots: int, latest: Record | None = None
) -> None:
    if latest is not None and latest.error is not None:
        last = latest.error.strip().splitlines()[-1]
        where = f"{latest.task} {latest.mapping} {latest.stage} {latest.index}"
        tqdm.write(f"{latest.status}: {where}: {last}")
    bad = sum(record.status != "finished" for record in done.values())
    bar.set_postfix(running=min(slots, int(bar.total) - len(done)), failed=bad)

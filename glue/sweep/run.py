"""`python -m glue sweep`: from a config to one record a run, whatever happens in between."""

from __future__ import annotations

import fcntl
import json
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
FREE = ("output_dir", "data_dir")
LOCK_FILE = ".lock"
ATTEMPTS = 2


def run_sweep(config: SweepConfig, resources: Resources) -> Records:
    """Do every run of the sweep that has no record yet, and return all records.

    A run that fails is tried once more, and again when the same command is given again.

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
    with Pool(execute, resources) as pool, claim_folder(config):
        records = read_records(folder)
        for fault in records.faults:
            tqdm.write(f"warning: {fault}; that run is done again")
        _work(plan, pool, {h: r for h, r in records.by_hash.items() if r.status != "failed"})
    return read_records(folder)


def _work(plan: Plan, pool: Pool[PlannedRun], done: dict[str, Record]) -> None:
    """Record runs as they end, until none is due; `done` are those that have come to an end."""
    before = sum(map(len, plan.records(done).values()))
    tries: Counter[str] = Counter()
    with tqdm(initial=before, total=plan.expected(done), desc="Sweep", unit="run") as bar:

        def show(running: int) -> None:
            bar.total = plan.expected(done)
            failed = sum(record.status != "finished" for record in done.values())
            bar.set_postfix(running=running, failed=failed)

        for run, outcome in pool.results(lambda: plan.due(done), show):
            record = run.record(**_outcome(outcome))
            tries[run.hash] += 1
            _write(plan.sweep, record)
            if record.error is not None:
                last = record.error.strip().splitlines()[-1]
                tqdm.write(f"{record.status}: {record}: {last}")
            if record.status != "failed" or tries[run.hash] == ATTEMPTS:
                done[run.hash] = record
                bar.update()


def _write(sweep: SweepConfig, record: Record) -> None:
    try:
        write_record(Path(sweep.output_dir), record)
    except OSError as error:
        raise OSError(
            f"output_dir={sweep.output_dir}: the record of {record} could not be written "
            f"({error}); those before it are safe: make room, and the same command goes on"
        ) from error


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


def check_folder(config: SweepConfig) -> None:
    """Write nothing, and raise ValueError if output_dir is not this sweep's or free."""
    folder = Path(config.output_dir)
    file = folder / SWEEP_FILE
    if not file.exists():
        # records alone may come from another sweep
        if folder.exists() and (
            not folder.is_dir() or {path.name for path in folder.iterdir()} - {FOLDER, LOCK_FILE}
        ):
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
            f"choose another output_dir. Runs that both have need not be done again: copy the "
            f"folder {folder / FOLDER} into it first, they are known by their hash"
        )


def check_runs(plan: Plan) -> None:
    """Raise what a run would raise for its mapping, data or model, before the first one starts."""
    sweep = plan.sweep
    path = resolve_model(sweep.model)
    for name, own in sweep.tasks.items():
        task = get_task(name)
        rows = own.train_rows if own else None
        held_out = sweep.selection if sweep.protocol == "fair" else None
        subset(load_task(task, sweep.data_dir), rows, held_out)
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


@contextmanager
def claim_folder(config: SweepConfig) -> Iterator[None]:
    """Make output_dir this sweep's own, and this process its only one while the block runs.

    Raises:
        ValueError: another process has it, or has made it another sweep's since it was checked.
    """
    folder = Path(config.output_dir)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    # the lock goes with the process, however that ends
    with (folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"output_dir={folder}: another process is running this sweep; wait for it, or stop "
                "it first"
            ) from None
        check_folder(config)
        write_json(folder / SWEEP_FILE, _content(config))
        yield

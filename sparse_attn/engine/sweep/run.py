"""Run a plan, writing one record per run, and survive kills and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.plan import PlannedRun, SweepPlan
from sparse_attn.engine.sweep.pool import Failure, JobT, LocalPool, Pool
from sparse_attn.engine.sweep.records import (
    FOLDER,
    FORMAT,
    IMPORTS,
    LOCK_FILE,
    PACKED_FILE,
    SWEEP_FILE,
    Record,
    Records,
    locked,
    read_records,
    write_record,
)
from sparse_attn.system.files import differences, is_free, make_folder, read_json, write_json
from sparse_attn.system.imports import imported

ATTEMPTS = 2
NAMED = 2  # runs named in the progress bar


def run_sweep(
    folder: Path,
    content: dict[str, Any],
    plan: SweepPlan,
    execute: Callable[[PlannedRun], dict[str, Any]],
    resources: Resources,
    *,
    check: Callable[[], None] | None = None,
    fresh: bool = True,
) -> Records:
    """Run everything without a record, and return the records of the sweep.

    Failed runs are retried once, and again when the command is repeated.

    Args:
        folder: output_dir of the sweep.
        content: content of sweep.json: the settings that a resumed sweep may not change.
        plan: the runs.
        execute: performs one run in another process; a module-level function. Returns
            `{"status": "finished", "results": {"score": ..., ...}}` or
            `{"status": "diverged", "error": ...}`.
        resources: where to run.
        check: raises configuration errors before the first run starts.
        fresh: start a process per run, see `make_pool`.

    Raises:
        ValueError, TypeError, OSError: invalid config, data, model or output_dir; no run has
            started.
        UnwrittenError: a record could not be written. Earlier records are kept, and the same
            command resumes from them.
    """
    check_folder(folder, content)
    if check is not None:
        check()
    with make_pool(execute, resources, fresh) as pool, claim_folder(folder, content):
        records = read_records(folder)
        for fault in records.faults:
            tqdm.write(f"warning: {fault}; repeating that run")
        done = {h: r for h, r in records.by_hash.items() if r.status != "failed"}
        _work(folder, plan, pool, done)
    return plan.own(read_records(folder))


def _work(folder: Path, plan: SweepPlan, pool: Pool[PlannedRun], done: dict[str, Record]) -> None:
    """Record runs as they end, until none is due; `done` holds the completed ones."""
    before = sum(map(len, plan.records(done).values()))
    tries: Counter[str] = Counter()
    with tqdm(initial=before, total=plan.expected(done), desc="Sweep", unit="run") as bar:

        def show(running: list[PlannedRun]) -> None:
            bar.total = plan.expected(done)
            count = Counter(record.status for record in done.values())
            names = [str(run) for run in running[:NAMED]]
            if len(running) > NAMED:
                names.append(f"{len(running) - NAMED} more")
            bar.set_postfix(
                running="; ".join(names), diverged=count["diverged"], failed=count["failed"]
            )

        for run, outcome in pool.results(lambda: plan.due(done), show):
            if isinstance(outcome, Failure):
                outcome = {"status": "failed", "error": outcome.error}
            record = run.record(**outcome)
            tries[run.hash] += 1
            write_record(folder, record)
            if record.error is not None:
                last = record.error.strip().splitlines()[-1]
                tqdm.write(f"{record.status}: {record}: {last}")
            else:
                tqdm.write(f"{record}: score {record.score:.4g}")
            if record.status != "failed" or tries[run.hash] == ATTEMPTS:
                done[run.hash] = record
                bar.update()


def check_folder(folder: Path, content: dict[str, Any]) -> None:
    """Raise ValueError unless output_dir is empty or belongs to this sweep; writes nothing."""
    file = folder / SWEEP_FILE
    if not file.exists():
        # records without sweep.json may be copies from another sweep
        if not is_free(folder, FOLDER, PACKED_FILE, LOCK_FILE):
            raise ValueError(
                f"output_dir={folder}: exists and is not the folder of a sweep; choose another"
            )
        return
    remedy = "delete that file if the folder belongs to this sweep, or choose another output_dir"
    found = read_json(file, f"output_dir={folder}", remedy)
    if isinstance(found, dict):
        found.pop(IMPORTS, None)  # a module may have moved
    different = differences(_with_format(content), found)
    if different:
        raise ValueError(
            f"output_dir={folder}: holds a sweep with another config ({'; '.join(different)}); "
            "choose another output_dir. To reuse the runs that both have, copy what "
            f"there is of {folder / FOLDER} and {folder / PACKED_FILE} into it first"
        )


@contextmanager
def claim_folder(folder: Path, content: dict[str, Any]) -> Iterator[None]:
    """Claim and lock output_dir for this sweep while the block runs.

    Raises:
        ValueError: another process holds the lock, or has claimed it for another sweep.
    """
    make_folder(folder / FOLDER)
    with locked(folder, "output_dir"):
        check_folder(folder, content)
        modules = {IMPORTS: imported()} if imported() else {}
        write_json(folder / SWEEP_FILE, {**_with_format(content), **modules})
        yield


def _with_format(content: dict[str, Any]) -> dict[str, Any]:
    return {"format": FORMAT, **content}


def make_pool(work: Callable[[JobT], Any], resources: Resources, fresh: bool = True) -> Pool[JobT]:
    """Return a pool that runs `work(job)` in another process for each job; use it in `with`.

    Args:
        work: a module-level function, called with one job.
        resources: resources per job; with an address, jobs run on Ray.
        fresh: start a process per job, so that peak memory is per job. False reuses processes,
            because short jobs would spend most of their time on imports.
    """
    if resources.address is None:
        return LocalPool(work, resources, fresh)
    from sparse_attn.engine.sweep.cluster import RayPool

    return RayPool(work, resources, fresh)

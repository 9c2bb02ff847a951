"""Run a plan: a command for each run, whose results.json is its record."""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from sparse_attn.engine.sweep.config import Resources
from sparse_attn.engine.sweep.plan import Cell, PlannedRun, SweepPlan
from sparse_attn.engine.sweep.pool import Job, LocalPool, Pool
from sparse_attn.engine.sweep.records import FOLDER, FORMAT, IMPORTS, PACKED_FILE, SWEEP_FILE
from sparse_attn.system.files import (
    differences,
    is_free,
    make_folder,
    read_json,
    write_json,
    write_text,
)
from sparse_attn.system.imports import import_options, imported
from sparse_attn.system.run_folders import CONFIG_FILE, RESULTS_FILE

NAMED = 2  # runs named in the progress bar


def run_sweep(
    folder: Path,
    content: dict[str, Any],
    plan: SweepPlan,
    package: str,
    resources: Resources,
    check: Callable[[], None],
) -> list[PlannedRun]:
    """Run what has no results yet, and return the runs that failed.

    Args:
        folder: output_dir of the sweep.
        content: content of sweep.json: the settings that a continued sweep may not change.
        plan: the runs.
        package: the program, `python -m PACKAGE train`.
        resources: where to run.
        check: raises configuration errors before the first run starts.

    Raises:
        ValueError, TypeError, OSError: invalid config, data, model or output_dir; no run has
            started.
        UnwrittenError: a file could not be written. The same command continues.
    """
    check_folder(folder, content)
    check()
    plan = plan.shard(resources.shard, resources.num_shards)
    with make_pool(resources) as pool, claim_folder(folder, content, plan.cells):
        return _work(folder, plan, package, pool)


def _work(folder: Path, plan: SweepPlan, package: str, pool: Pool) -> list[PlannedRun]:
    done = plan.completed(folder)
    running: dict[str, PlannedRun] = {}
    failed: dict[str, PlannedRun] = {}
    with tqdm(initial=len(done), total=plan.expected(done), desc="Sweep", unit="run") as bar:
        while True:
            for run in [r for r in plan.due(done) if r.hash not in (*running, *failed)]:
                if not pool.has_room:
                    break
                pool.start(run.hash, _job(run, folder, package))
                running[run.hash] = run
            if not running:
                return list(failed.values())
            _show(bar, list(running.values()), len(failed))
            for key in pool.ended():
                run = running.pop(key)
                record = run.read(folder)
                if record is None or record.status == "failed":
                    failed[key] = run
                    said = "it left no log" if record is None else record.error
                    tqdm.write(f"failed: {run}; the end of {run.log(folder)}:\n{said}")
                    continue
                done[key] = record
                bar.total = plan.expected(done)
                bar.update()
                _keep_results(run.folder(folder))
                score = f"score {record.score:.4g}" if record.results else record.error
                tqdm.write(f"{run}: {score}")


def _job(run: PlannedRun, sweep: Path, package: str) -> Job:
    """Write the config of a run beside its folder, and return its command."""
    folder, config = run.folder(sweep), run.folder(sweep).with_name(f"{run.stem}.yaml")
    write_text(config, yaml.safe_dump(asdict(run.config), sort_keys=False))
    words = ["-P"] if sys.flags.safe_path else []
    words += ["-m", package, "train", "--config", str(config), "--output_dir", str(folder)]
    words += ["--resume"] if (folder / CONFIG_FILE).exists() else []
    return Job([*words, *import_options(imported())], run.log(sweep))


def _show(bar: tqdm[Any], running: list[PlannedRun], failed: int) -> None:
    names = [str(run) for run in running[:NAMED]]
    if len(running) > NAMED:
        names.append(f"{len(running) - NAMED} more")
    bar.set_postfix(running="; ".join(names), failed=failed)


def _keep_results(folder: Path) -> None:
    """Delete the weights and checkpoints of a run that has ended."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in (CONFIG_FILE, RESULTS_FILE):
            path.unlink()


def check_folder(folder: Path, content: dict[str, Any]) -> None:
    """Raise ValueError unless output_dir is empty or belongs to this sweep; writes nothing."""
    file = folder / SWEEP_FILE
    if not file.exists():
        # runs without sweep.json may be copies from another sweep
        if not is_free(folder, FOLDER, PACKED_FILE):
            raise ValueError(
                f"output_dir={folder}: exists and is not the folder of a sweep; choose another"
            )
        return
    remedy = "delete that file if the folder belongs to this sweep, or choose another output_dir"
    found = read_json(file, f"output_dir={folder}", remedy)
    if isinstance(found, dict):
        found.pop(IMPORTS, None)  # a module may have moved
    different = differences({"format": FORMAT, **content}, found)
    if different:
        raise ValueError(
            f"output_dir={folder}: holds a sweep with another config ({'; '.join(different)}); "
            "choose another output_dir. To reuse the runs that both have, copy "
            f"{folder / FOLDER} into it first"
        )


@contextmanager
def claim_folder(folder: Path, content: dict[str, Any], cells: Iterable[Cell]) -> Iterator[None]:
    """Claim output_dir for this sweep, and lock some cells of it, while the block runs.

    Raises:
        ValueError: another process has locked a cell, or has claimed the folder for another sweep.
    """
    runs = folder / FOLDER
    make_folder(runs)
    with ExitStack() as locks:
        # locks are released when the process ends, however it ends
        with (runs / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # shards start together
            check_folder(folder, content)
            modules = {IMPORTS: imported()} if imported() else {}
            write_json(folder / SWEEP_FILE, {"format": FORMAT, **content, **modules})
        for task, mapping in cells:
            lock = locks.enter_context((runs / f".{task}.{mapping}.lock").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"output_dir={folder}: another process is running this sweep, or another shard "
                    f"of it with {mapping} on {task}; wait for it, or stop it first"
                ) from None
        yield


def make_pool(resources: Resources) -> Pool:
    """Return the pool of this machine or, with an address, of a Ray cluster."""
    if resources.address is None:
        return LocalPool(resources)
    from sparse_attn.engine.sweep.cluster import RayPool

    return RayPool(resources)

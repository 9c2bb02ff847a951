"""Run the remaining cases of a stage until time is up, in processes that may hang or crash."""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from benchmarks.gpu.stage import CLOSING, PROCESSES, Result, Setup, Stage
from benchmarks.record import environment, slug
from benchmarks.timing import DeviceLostError, reason
from engine.sweep.config import Resources
from engine.sweep.pool import Failure, LocalPool
from sparse_attn.system.files import read_json, write_text

LOST = 3  # exit code of a process whose GPU no longer responds
SAME = ("versions", "commit")  # must be equal in the environments of all calls
REMEDY = "remove it, or use another --out"
WORTHWHILE = 0.25  # no case starts if less than this share of its time is left


class StageProgress:
    """gpu-NAME.json of a GPU: seconds and results of each stage, written after every case.

    Raises:
        ValueError: the folder has a record of other code or packages.
    """

    def __init__(self, setup: Setup) -> None:
        now = environment(setup.device)
        capability = None if setup.rehearse else torch.cuda.get_device_capability()
        now |= {"capability": capability}
        self.file = setup.out / f"gpu-{slug(now['device'])}.json"
        self.record: dict[str, Any] = {"environment": now, "stages": {}}
        if self.file.exists():
            self.record = read_json(self.file, str(setup.out), REMEDY)
            before = self.record["environment"]
            if changed := [name for name in SAME if before[name] != now[name]]:
                raise ValueError(
                    f"{setup.out} was measured with another {' and '.join(changed)}; {REMEDY}"
                )
        else:
            setup.tests.unlink(missing_ok=True)  # outcomes of other code
        if not Path(knobs.cache.dir).exists():  # a fresh machine
            self.record["stages"].pop("candidates", None)

    def of(self, stage: Stage) -> dict[str, Any]:
        """Return the entry of a stage: seconds, results by case, cases cut off by a call's end."""
        fresh = {"seconds": 0.0, "cases": {}, "cut": []}
        entry: dict[str, Any] = self.record["stages"].setdefault(stage.name, fresh)
        return entry

    def left(self, stage: Stage, setup: Setup) -> list[str]:
        """Return the cases without a result; none if the stage has used up its time."""
        if stage.deadline - self.of(stage)["seconds"] < WORTHWHILE * stage.patience:
            return []
        return [case for case in stage.cases(setup) if not self.has(stage, case)]

    def has(self, stage: Stage, case: str) -> bool:
        """Return whether the case has a final result."""
        result = self.of(stage)["cases"].get(case)
        return result is not None and not result.get("again")

    def write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.file, json.dumps(self.record, indent=1) + "\n")


Job = tuple[Stage, float, str]  # stage, time at which it ends, case


def make_pool(setup: Setup) -> LocalPool[Job]:
    """Return a pool whose processes share the GPU; the first runs all serial cases."""
    resources = Resources(gpus_per_run=0 if setup.rehearse else 1 / PROCESSES)
    return LocalPool(functools.partial(perform, setup), resources, fresh=False)


def run_stage(
    stage: Stage, setup: Setup, progress: StageProgress, call_ends: float, serial: LocalPool[Job]
) -> None:
    """Run the cases that are left until `call_ends` (time.time) or the stage's deadline.

    Cases of a stage that is not parallel run in `serial`, whose process is started once. A case
    that fails when the call ends is run once more in the next call.
    """
    entry, begun = progress.of(stage), time.time()
    before, names = entry["seconds"], progress.left(stage, setup)
    ends = min(call_ends, begun + stage.deadline - before)

    def due() -> list[Job]:
        left = [name for name in names if not progress.has(stage, name) and name not in cut]
        worthwhile = time.time() + WORTHWHILE * stage.patience < ends
        chosen = left[: None if stage.parallel else 1] if worthwhile else []
        return [(stage, ends, case) for case in chosen]

    cut = list[str]()
    # end the processes of a parallel stage with it, because timed cases need the GPU alone
    with make_pool(setup) if stage.parallel else nullcontext(serial) as pool:
        for (*_, case), outcome in pool.results(due, lambda running: None):
            found = _result_of_failure(outcome) if isinstance(outcome, Failure) else outcome
            entry["seconds"] = round(before + time.time() - begun, 1)
            over = time.time() > call_ends - 2 * CLOSING
            if "failed" in found and over and case not in entry["cut"] and "again" not in found:
                cut.append(case)
                entry["cut"].append(case)
            else:
                entry["cases"][case] = found
                cut += [case] * found.get("again", False)
            progress.write()
            said = found.get("skipped", found.get("shown", "ok"))
            said = f"FAILED: {found['failed']}" if "failed" in found else said
            count = f"{len(entry['cases'])}/{len(stage.cases(setup))}"
            print(f"[{stage.name} {count}] {case}: {said}", flush=True)


def perform(setup: Setup, job: Job) -> Result:
    """Run a case; end this process when its time is up or the GPU is lost."""
    stage, ends, case = job
    begun = time.time()
    seconds = max(1.0, min(stage.patience, ends - begun))
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        found = stage.run(setup, case, seconds)
    except Exception as error:
        told = traceback.format_exc().splitlines()[-20:]
        try:
            found = {"failed": reason(error), "output": told}
        except DeviceLostError:
            print("\n".join(told), file=sys.stderr, flush=True)
            os._exit(LOST)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if setup.device.type == "cuda":
        torch.cuda.empty_cache()  # processes share the GPU
    return {"seconds": round(time.time() - begun, 1), **found}


def _result_of_failure(failure: Failure) -> Result:
    """Return the result of a case whose process died."""
    output = failure.error.splitlines()
    # nothing but the watchdog exits with 1: exceptions are results
    causes = {"exit code 1": "not finished in time", f"exit code {LOST}": "the GPU was lost"}
    cause = next((c for end, c in causes.items() if output[-1].endswith(end)), output[-1])
    return {"failed": cause, "output": output}

"""Run what is left of a stage until time is up, each case in a process that may hang or crash."""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from triton import knobs

from benchmarks.gpu.stage import CLOSING, PROCESSES, Result, Setup, Stage
from benchmarks.record import environment
from benchmarks.timing import DeviceLostError, reason
from pipeline.files import read_json, write_text
from pipeline.sweep.config import Resources
from pipeline.sweep.pool import Failure, LocalPool

LOST = 3  # exit code of a process whose GPU no longer responds
SAME = ("device", "versions", "commit")  # of the environments of all calls
REMEDY = "remove it, or use another --out"
WORTHWHILE = 0.25  # no case starts with less than this share of its time left


class Progress:
    """gpu.json, rewritten after every case: the seconds of each stage and results of its cases.

    Raises:
        ValueError: the folder holds the record of other code, packages or another GPU.
    """

    def __init__(self, setup: Setup) -> None:
        self.file = setup.out / "gpu.json"
        now = environment(setup.device)
        self.record: dict[str, Any] = {"environment": now, "stages": {}}
        if self.file.exists():
            self.record = read_json(self.file, str(setup.out), REMEDY)
            before = self.record["environment"]
            if changed := [name for name in SAME if before[name] != now[name]]:
                raise ValueError(
                    f"{setup.out} was measured with another {' and '.join(changed)}; {REMEDY}"
                )
        if not Path(knobs.cache.dir).exists():  # a fresh machine
            self.record["stages"].pop("compile", None)

    def of(self, stage: Stage) -> dict[str, Any]:
        """The entry of a stage: its seconds, results by case, and cases cut off by a call's end."""
        fresh = {"seconds": 0.0, "cases": {}, "cut": []}
        entry: dict[str, Any] = self.record["stages"].setdefault(stage.name, fresh)
        return entry

    def left(self, stage: Stage, setup: Setup) -> list[str]:
        """The cases without a result; none if the stage has used up its time."""
        if stage.deadline - self.of(stage)["seconds"] < WORTHWHILE * stage.patience:
            return []
        return [case for case in stage.cases(setup) if case not in self.of(stage)["cases"]]

    def write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.file, json.dumps(self.record, indent=1) + "\n")


def run_stage(stage: Stage, setup: Setup, progress: Progress, call_ends: float) -> None:
    """Run the cases that are left until `call_ends` (time.time) or the stage's deadline.

    What fails as the call ends is run once more in the next call.
    """
    entry, begun = progress.of(stage), time.time()
    before, names = entry["seconds"], progress.left(stage, setup)
    ends = min(call_ends, begun + stage.deadline - before)

    def due() -> list[str]:
        left = [name for name in names if name not in entry["cases"] and name not in cut]
        worthwhile = time.time() + WORTHWHILE * stage.patience < ends
        return left[: None if stage.parallel else 1] if worthwhile else []

    cut = list[str]()
    resources = Resources(gpus_per_run=0 if setup.rehearse else 1 / PROCESSES)
    work = functools.partial(perform, stage, setup, ends)
    with LocalPool(work, resources, fresh=False) as pool:
        for case, outcome in pool.results(due, lambda running: None):
            found = _explained(outcome) if isinstance(outcome, Failure) else outcome
            entry["seconds"] = round(before + time.time() - begun, 1)
            over = time.time() > call_ends - 2 * CLOSING
            if "failed" in found and over and case not in entry["cut"]:
                cut.append(case)
                entry["cut"].append(case)
            else:
                entry["cases"][case] = found
            progress.write()
            said = f"FAILED: {found['failed']}" if "failed" in found else found.get("skipped", "ok")
            count = f"{len(entry['cases'])}/{len(stage.cases(setup))}"
            print(f"[{stage.name} {count}] {case}: {said}", flush=True)


def perform(stage: Stage, setup: Setup, ends: float, case: str) -> Result:
    """Run a case; ends this process when its time is up or the GPU is lost."""
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
    return {"seconds": round(time.time() - begun, 1), **found}


def _explained(failure: Failure) -> Result:
    """The result of a case whose process died."""
    output = failure.error.splitlines()
    # nothing but the watchdog exits with 1: exceptions are results
    causes = {"exit code 1": "not finished in time", f"exit code {LOST}": "the GPU was lost"}
    cause = next((c for end, c in causes.items() if output[-1].endswith(end)), output[-1])
    return {"failed": cause, "output": output}

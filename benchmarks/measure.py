"""Run the selected cases of a suite, writing its files after each."""

from __future__ import annotations

import argparse
import pkgutil
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.command import SUITES
from benchmarks.race import Race
from benchmarks.record import Files
from benchmarks.suite import Case, Suite
from benchmarks.timing import DeviceLostError, Effort


def get_suite(name: str) -> Suite[Any, Any]:
    """Return a suite of `SUITES`, imported on demand."""
    suite: Suite[Any, Any] = pkgutil.resolve_name(SUITES[name].place)()
    return suite


def measure_all(
    suite: Suite[Any, Any], cases: Sequence[Case], device: torch.device, options: argparse.Namespace
) -> None:
    """Run cases until the time is used up; the record lists the rest."""
    begun = time.perf_counter()
    pace = suite.paces["quick" if options.quick else device.type]
    effort = Effort(
        pace.seconds, options.rounds or pace.least, deadline=begun + (options.budget or pace.budget)
    )
    files = Files(suite, device, options)
    for number, case in enumerate(cases, 1):
        label = f"{case.group}: {case.name}"
        if effort.over:
            files.record["left_out"].append(label)
            continue
        again = case.once and files.holds(case)
        print(f"[{number}/{len(cases)}] {label}{', recorded before' * again}", flush=True)
        if again:
            continue
        try:
            measure_case(files, case, device, effort, options.skip)
        except DeviceLostError as error:
            files.write()
            raise SystemExit(
                f"{label}: a kernel left the GPU unusable ({error}); what was measured before "
                "is written. Leave the contestant out with --skip, and keep the rest with --keep"
            ) from error
    files.record["seconds"] = round(time.perf_counter() - begun, 1)
    files.write()
    files.draw()
    print(f"{suite.page(files.record)}\nwrote {files.stem}.json and .md")


def measure_case(
    files: Files, case: Case, device: torch.device, effort: Effort, skip: str | None = None
) -> None:
    """Measure a case, with its share of the effort, and write it into the files of its suite."""
    begun, suite = time.perf_counter(), files.suite
    contestants = [c for c in suite.contestants(case, device) if not (skip and skip in c.name)]
    effort = replace(effort, seconds=case.share * effort.seconds)
    found = suite.measure(case, Race(contestants, suite.base, device, effort))
    files.add(case, found, time.perf_counter() - begun)

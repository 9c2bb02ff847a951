"""Measure, and write runs/benchmarks/<device>.json, .md and .png.

Run as:
    python -m benchmarks            # everything, at most 12 minutes on 2 cores, 8 on a GPU
    python -m benchmarks --quick    # one minute, small
    python -m benchmarks --publish  # into results/benchmarks, which README and docs quote
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks import attention, step
from benchmarks.cases import GROUPS, Case, cases
from benchmarks.folders import add_out
from benchmarks.plots import plot
from benchmarks.report import Report
from benchmarks.timing import DeviceLostError, Effort


@dataclass(frozen=True)
class Pace:
    """Seconds for a whole run, seconds shared by the contestants of one measurement, rounds."""

    budget: float
    seconds: float
    least: int


PACES = {
    "cpu": Pace(660, 10, 5),
    "cuda": Pace(450, 2.5, 7),
    "quick": Pace(60, 1, 3),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the chosen cases, writing after each."""
    parser = _parser()
    options = parser.parse_args(argv)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU; leave it out for the CPU")
    chosen = [c for c in cases(device.type, options.quick) if _wanted(c, options)]
    if not chosen:
        names = ", ".join(c.name for c in cases(device.type, options.quick))
        parser.error(f"no case is left of {names}; see --only and --case")
    pace = PACES["quick" if options.quick else device.type]
    budget = pace.budget if options.budget is None else options.budget
    said = {"quick": options.quick, "budget": budget, "skip": options.skip}
    report = Report(options.out, device, {**said, "only": options.only, "case": options.case})
    if options.keep:
        report.keep()
    measure_all(chosen, device, pace, budget, report, options.skip)
    for path in plot(report.record, report.folder, report.stem):
        print(f"wrote {path}")
    print(f"wrote {report.json} and {report.stem}.md")


def measure_all(
    chosen: Sequence[Case],
    device: torch.device,
    pace: Pace,
    budget: float,
    report: Report,
    skip: str | None,
) -> None:
    """Every case until the budget is spent; the record names those left out."""
    begun = time.perf_counter()
    effort = Effort(pace.seconds, pace.least, deadline=begun + budget)
    left_out = []
    for number, case in enumerate(chosen, 1):
        if effort.over:
            left_out.append(f"{case.group}: {case.name}")
            continue
        print(f"[{number}/{len(chosen)}] {case.group}: {case.name}, {case.title}", flush=True)
        started = time.perf_counter()
        run = step.run if case.group == "step" else attention.run
        try:
            found = run(case, device, replace(effort, seconds=_seconds_of(case, pace)), skip)
        except DeviceLostError as error:
            report.write()
            raise SystemExit(
                f"{case.name}: a kernel left the GPU unusable ({error}); what was measured before "
                "is written. Leave the contestant out with --skip, and take the rest over with "
                "--keep"
            ) from error
        report.add(case, found, time.perf_counter() - started)
    report.record["left_out"] = left_out
    report.record["seconds"] = round(time.perf_counter() - begun, 1)
    report.write()


def _seconds_of(case: Case, pace: Pace) -> float:
    """A step is no matter of milliseconds, and one point of a curve matters less."""
    return pace.seconds * (4 if case.group == "step" else 0.5 if case.few else 1)


def _wanted(case: Case, options: argparse.Namespace) -> bool:
    group = not options.only or case.group in options.only
    return group and (not options.case or any(part in case.name for part in options.case))


def _parser() -> argparse.ArgumentParser:
    groups = "\n".join(f"  {name:10} {meaning}" for name, meaning in GROUPS.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Time and peak memory of attention and of whole training steps, beside SDPA,\n"
        "FlexAttention, eager PyTorch, entmax, AdaSplash and Liger. Whoever is not\n"
        "installed, cannot do a case or runs out of memory gets a row that says so.",
        epilog=f"groups for --only:\n{groups}\n\n"
        "Contestants take turns in rounds of shuffled order; a ratio is the median over rounds,\n"
        "so that it holds on a machine that others use too. Threads are PyTorch's: set\n"
        "OMP_NUM_THREADS to change them. Files are named after the device, so that those of a\n"
        "CPU and of a GPU lie side by side, and are written after every case.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_out(parser)
    add("--only", nargs="+", choices=GROUPS, metavar="GROUP", help="measure these groups alone")
    add("--case", nargs="+", metavar="TEXT", help="only cases with one of these in their name")
    add("--skip", metavar="TEXT", help="leave out contestants with this in their name")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    add("--quick", action="store_true", help="small shapes and few rounds, about one minute")
    add("--budget", type=_seconds, metavar="SECONDS", help="begin nothing after this time")
    add("--keep", action="store_true", help="keep the other cases of the record in --out")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text}")
    return value


if __name__ == "__main__":
    main()

"""Measure suites, each into runs/benchmarks/<suite>-<device>.json, .md and .png.

Run as:
    python -m benchmarks                   # attention and training steps, 12 minutes on 2 cores
    python -m benchmarks --quick           # the same, small, one minute
    python -m benchmarks heads recording   # other suites; --help names them
    python -m benchmarks --publish         # into results/benchmarks, which README and docs quote
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention.suite import Attention
from benchmarks.factored import Factored
from benchmarks.glue import Glue
from benchmarks.heads import Heads
from benchmarks.race import Race
from benchmarks.record import Files
from benchmarks.recording import Recording
from benchmarks.suite import Case, Suite, above
from benchmarks.timing import DeviceLostError, Effort

SUITES: dict[str, Suite[Any, Any]] = {
    suite.name: suite for suite in (Attention(), Heads(), Factored(), Recording(), Glue())
}
OWN, PUBLISHED = Path("runs/benchmarks"), Path("results/benchmarks")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the chosen cases of the chosen suites, writing after each."""
    parser = _parser()
    options = parser.parse_args(argv)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU; leave it out for the CPU")
    chosen = {}
    for suite in options.suites or [SUITES["attention"]]:
        cases = suite.cases(device.type, options)
        chosen[suite] = [case for case in cases if _wanted(case, options)]
        if not chosen[suite]:
            names = ", ".join(f"{case.group}: {case.name}" for case in cases)
            parser.error(f"no case is left of {names}; see --only and --case")
    for suite, cases in chosen.items():
        measure_all(suite, cases, device, options)


def measure_all(
    suite: Suite[Any, Any], cases: Sequence[Case], device: torch.device, options: argparse.Namespace
) -> None:
    """Every case until the budget is spent; the record names those left out."""
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
        started = time.perf_counter()
        contestants = [
            c
            for c in suite.contestants(case, device)
            if not (options.skip and options.skip in c.name)
        ]
        seconds = case.share * pace.seconds
        race = Race(contestants, suite.base, device, replace(effort, seconds=seconds))
        try:
            found = suite.measure(case, race)
        except DeviceLostError as error:
            files.write()
            raise SystemExit(
                f"{label}: a kernel left the GPU unusable ({error}); what was measured before "
                "is written. Leave the contestant out with --skip, and keep the rest with --keep"
            ) from error
        files.add(case, found, time.perf_counter() - started)
    files.record["seconds"] = round(time.perf_counter() - begun, 1)
    files.write()
    files.draw()
    print(f"{suite.page(files.record)}\nwrote {files.stem}.json and .md")


def _wanted(case: Case, options: argparse.Namespace) -> bool:
    group = not options.only or case.group in options.only
    return group and (not options.case or any(part in case.name for part in options.case))


def _suite(name: str) -> Suite[Any, Any]:
    if name not in SUITES:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(SUITES)}, got {name}")
    return SUITES[name]


def _listed() -> str:
    return "\n".join(
        line
        for suite in SUITES.values()
        for line in (
            f"  {suite.name:11}{suite.about}",
            *(f"    {group:18} {meaning}" for group, meaning in suite.groups.items()),
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Time and peak memory of this library beside others. A contestant that is not\n"
        "installed, cannot do a case or runs out of memory gets a row that says so.",
        epilog=f"suites and their groups:\n{_listed()}\n\n"
        "Contestants take turns in rounds of shuffled order; a ratio is the median over rounds,\n"
        "so that it holds on a machine that others use too. Threads are PyTorch's: set\n"
        "OMP_NUM_THREADS to change them. Files are named after suite and device, and written\n"
        "after every case.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("suites", nargs="*", type=_suite, metavar="SUITE", help="default: attention")
    folder = parser.add_mutually_exclusive_group()
    folder.add_argument("--out", type=Path, help="folder to write into; default: %(default)s")
    folder.add_argument(
        "--publish",
        dest="out",
        action="store_const",
        const=PUBLISHED,
        help=f"write into {PUBLISHED}, whose records README and docs quote",
    )
    parser.set_defaults(out=OWN)
    groups = dict.fromkeys(group for suite in SUITES.values() for group in suite.groups)
    add("--only", nargs="+", choices=groups, metavar="GROUP", help="only these groups")
    add("--case", nargs="+", metavar="TEXT", help="only cases with one of these in the name")
    add("--skip", metavar="TEXT", help="leave out contestants with this in the name")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    add("--quick", action="store_true", help="small shapes and few rounds, about one minute")
    add("--budget", type=above(float), metavar="SECONDS", help="start no case after this time")
    add("--rounds", type=above(int), help="time everyone at least so often")
    add("--keep", action="store_true", help="keep the other cases of the record in --out")
    Glue.add_options(parser.add_argument_group("glue"))
    return parser


if __name__ == "__main__":
    main()

"""Time and peak memory of an output layer with its loss, beside PyTorch's, Liger's and Apple's.

Run as:
    python -m benchmarks.heads            # everything, at most 6 minutes on 2 cores
    python -m benchmarks.heads --quick    # small, half a minute
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.folders import add_out
from benchmarks.heads_cases import GROUPS, VOCABULARIES, Case, Problem, cases, contestants
from benchmarks.heads_tables import OURS, PLAIN, Record, markdown
from benchmarks.report import device_name, environment, numbers, rounded, slug
from benchmarks.timing import (
    DeviceLostError,
    Effort,
    Measurement,
    Task,
    measure,
    peak_memories,
    ratio,
    summarise,
    wall_clock,
)
from pipeline.files import write_json, write_text

BUDGETS = {"cpu": 340, "cuda": 300}  # seconds for a whole run


def run(case: Case, device: torch.device, effort: Effort) -> list[Record]:
    """A row a contestant."""
    problem = Problem(case, device)
    tasks = {
        name: Task(functools.partial(problem.step, loss), problem.clear)
        for name, loss in contestants(case.group).items()
    }
    measured = measure(tasks, wall_clock, effort, PLAIN)
    facts = memory_and_error(problem, tasks, measured, effort)
    return [_row(name, measured, facts) for name in tasks]


def memory_and_error(
    problem: Problem, tasks: dict[str, Task], measured: dict[str, Measurement], effort: Effort
) -> dict[str, dict[str, float]]:
    """Peak memory, that without the gradients of the parameters, and how far W's is from PLAIN's.

    A contestant that fails here loses its times too.
    """
    found: dict[str, dict[str, float]] = {}
    reference = None
    for name in tasks:
        alone = {name: measured[name]}
        peaks = peak_memories(tasks, alone, problem.hidden.device, effort)
        measured |= alone
        if name not in peaks:
            continue
        peak = peaks[name]
        found[name] = {"peak_mib": peak, "beyond_gradients_mib": peak - problem.gradient_mib()}
        assert problem.head.weight.grad is not None
        gradient = problem.head.weight.grad.float()
        if name == PLAIN:
            reference = gradient
        if reference is not None:
            error = (gradient - reference).norm() / reference.norm()
            found[name]["gradient_difference"] = error.item()
    return found


def _row(name: str, measured: dict[str, Measurement], facts: dict[str, dict[str, float]]) -> Record:
    own = measured[name]
    row: Record = {"name": name, "reason": own.reason}
    if own.reason is not None:
        return row
    row["ms"] = numbers(summarise(own.samples.values()))
    # ours beside everyone, the others beside the plain form
    others = [n for n in measured if n != name] if name == OURS else [PLAIN]
    row["to"] = {other: numbers(ratio(own, measured[other])) for other in others}
    return row | {key: rounded(value) for key, value in facts.get(name, {}).items()}


# Command line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write heads-<device>.json and .md after every case."""
    parser = _parser()
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = [c for c in cases(device.type, options.quick) if _wanted(c, options.only or ())]
    if not chosen:
        names = ", ".join(case.name for case in cases(device.type, options.quick))
        parser.error(f"--only {' '.join(options.only)}: none of the cases {names}")
    stem = options.out / f"heads-{slug(device_name(device))}"
    measure_all(chosen, device, options, stem)
    print(stem.with_suffix(".md").read_text())
    print(f"wrote {stem.with_suffix('.json')} and {stem.with_suffix('.md')}")


def measure_all(
    chosen: list[Case], device: torch.device, options: argparse.Namespace, stem: Path
) -> None:
    """Every case until the budget is spent; the record names those left out."""
    begun = time.perf_counter()
    effort = Effort(
        seconds=1 if options.quick else 5,
        least=3 if options.quick else 5,
        deadline=begun + BUDGETS[device.type],
    )
    record: dict[str, Any] = {"environment": environment(device)}
    record |= {"quick": options.quick, "only": options.only, "cases": []}
    stem.parent.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(chosen, 1):
        if effort.over:
            break
        print(f"[{number}/{len(chosen)}] {case.name}", flush=True)
        try:
            found = run(case, device, effort)
        except DeviceLostError as error:
            raise SystemExit(f"{case.name}: a kernel left the GPU unusable ({error})") from error
        sizes = {"vocab": VOCABULARIES[case.vocabulary], **dataclasses.asdict(case)}
        record["cases"].append({"meaning": GROUPS[case.group], **sizes, "rows": found})
        record["left_out"] = [left.name for left in chosen[number:]]
        record["seconds"] = round(time.perf_counter() - begun, 1)
        write_json(stem.with_suffix(".json"), record)
        write_text(stem.with_suffix(".md"), markdown(record))


def _wanted(case: Case, only: Sequence[str]) -> bool:
    """Heads and vocabularies each choose among their own kind, where some are named."""
    kinds = ((GROUPS, case.group), (VOCABULARIES, case.vocabulary))
    return all(own in only or not any(word in kind for word in only) for kind, own in kinds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.heads",
        description="Time and peak memory of output layer and loss, forward and backward.",
        epilog="Threads are PyTorch's: set OMP_NUM_THREADS to change them.",
    )
    words = [*GROUPS, *VOCABULARIES]
    add = parser.add_argument
    add("--quick", action="store_true", help="small")
    add("--only", nargs="+", choices=words, metavar="WORD", help=f"of {', '.join(words)}")
    add_out(parser)
    return parser


if __name__ == "__main__":
    main()

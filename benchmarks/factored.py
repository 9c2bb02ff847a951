"""A training step of the factored spherical layer beside dense SGD, from 10k to 1M words.

Run as:
    python -m benchmarks.factored            # at most 4 minutes on one core
    python -m benchmarks.factored --quick    # small, some seconds
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.folders import add_out
from benchmarks.report import Entry, device_name, environment, rows, slug
from benchmarks.tables import line, short, spread
from benchmarks.timing import MIB, Effort, Task, measure, peak_memories, wall_clock
from pipeline.files import write_json, write_text
from sparse_attn.heads.factored import FactoredSphericalHead

Record = dict[str, Any]
BATCH = 64
BATCHES = 8  # which take turns
LR = 0.5
MOST_DENSE = 100_000_000  # weights; one step of more takes seconds and gigabytes
FACTORED, DENSE, RESET = "factored", "dense", "reset"
ENTRIES = (
    Entry(FACTORED, "spherical", ours=True),
    Entry(DENSE, "spherical", ours=False),
    Entry(RESET, "reset", ours=True),
)
MEANING = f"""A step is forward, backward to the hidden states and the update, on {BATCH} rows of
float32, of the spherical loss: `{FACTORED}` is FactoredSphericalHead, `{DENSE}` the same W in full,
with autograd and torch.optim.SGD. Times are medians in milliseconds with quartiles, over rounds in
which both run; the ratio is the median of those within a round. Memory is the peak of what PyTorch
allocates during a step beyond weights and inputs, gradients of the weights included. `{RESET}` is
what keeps the factored form stable and is not in the step: resetting one singular value of U. That
is looked for when a bound on them has passed a limit, in {{checks}} steps of this benchmark at the
earliest; most looks find nothing to reset, and cost what does not depend on the vocabulary."""


@dataclass(frozen=True)
class Case:
    """A vocabulary and a size d of the hidden states."""

    vocab: int
    hidden: int


FULL = [
    Case(vocab, d) for d in (100, 300) for vocab in (10_000, 31_000, 100_000, 316_000, 1_000_000)
]
QUICK = [Case(vocab, 32) for vocab in (1_000, 10_000)]


class Problem:
    """Both layers, from the same weights, and the batches."""

    def __init__(self, case: Case, device: torch.device) -> None:
        torch.manual_seed(0)
        with device:
            self.head = FactoredSphericalHead(case.hidden, case.vocab)
            hidden = torch.randn(BATCHES, BATCH, case.hidden)
            targets = torch.randint(case.vocab, (BATCHES, BATCH))
        self.turns = itertools.cycle(zip(hidden.unbind(), targets.unbind(), strict=True))
        self.weight: nn.Parameter | None = None
        if case.vocab * case.hidden <= MOST_DENSE:
            self.weight = nn.Parameter(self.head.W)
            self.sgd = torch.optim.SGD([self.weight], lr=LR)
        self.factor = 0.4

    def tasks(self) -> dict[str, Task]:
        """What is timed, by name."""
        steps: dict[str, Callable[[Tensor, Tensor], None]] = {
            FACTORED: self.factored,
            DENSE: self.dense,
        }
        found = {name: Task(functools.partial(self._next, step)) for name, step in steps.items()}
        return {**found, RESET: Task(self.head.matrix.stabilise, self.unbalance)}

    def _next(self, step: Callable[[Tensor, Tensor], None]) -> None:
        hidden, targets = next(self.turns)
        step(hidden.requires_grad_(), targets)
        hidden.grad = None

    def factored(self, hidden: Tensor, targets: Tensor) -> None:
        """One step of the factored layer."""
        self.head(hidden, targets).backward()
        self.head.step(LR)

    def dense(self, hidden: Tensor, targets: Tensor) -> None:
        """The same on W, through the three numbers that the loss needs, the cheapest dense form."""
        if self.weight is None:
            raise NotImplementedError(
                f"more than {MOST_DENSE // 1_000_000} million weights: seconds and gigabytes a step"
            )
        scores = F.linear(hidden, self.weight)
        a = scores.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        self.head.loss_of(a, scores.square().sum(-1), scores.sum(-1)).mean().backward()
        self.sgd.step()
        self.sgd.zero_grad()

    def unbalance(self) -> None:
        """Move one singular value of U out of bounds, up and down by turns."""
        matrix = self.head.matrix
        matrix.stabilise()
        matrix.U[0] *= self.factor
        self.factor = 1 / self.factor

    def steps_between_checks(self) -> int:
        """How many steps move the bound on the singular values from NEAR to FAR, a factor of 2."""
        self.head.matrix.stabilise()
        before = self.head.matrix.spread.item()
        for _ in range(BATCHES):
            self._next(self.factored)
        moved = (self.head.matrix.spread.item() - before) / BATCHES
        return int(torch.tensor(2.0).log().item() / moved)


def run(case: Case, device: torch.device, effort: Effort) -> Record:
    """The measured case."""
    problem = Problem(case, device)
    checks = problem.steps_between_checks()
    tasks = problem.tasks()
    measured = measure(tasks, wall_clock, effort, FACTORED)
    peaks = peak_memories(tasks, measured, device, effort)
    facts = {name: {"memory step": peaks.get(name)} for name in tasks}
    weights = sum(t.nbytes for t in problem.head.state_dict().values()) / MIB
    return {
        "vocab": case.vocab,
        "hidden": case.hidden,
        "batch": BATCH,
        "weights_mib": round(weights, 1),
        "steps_between_checks": checks,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "rows": rows(measured, ENTRIES, "step", "", facts),
    }


# The files


def markdown(record: Record) -> str:
    """The whole record as a table for each d."""
    where = record["environment"]
    checks = min(case["steps_between_checks"] for case in record["cases"])
    lines = [
        f"# The factored spherical layer on {where['device']}",
        "",
        f"{where['cpu']}, {where['threads']} threads; torch {where['versions']['torch']}; "
        f"{where['started']}, commit {where['commit'] or 'unknown'}.",
        "",
        MEANING.format(checks=checks),
        "",
        f"Processes that ran on its {where['cores']} cores meanwhile, this one included: "
        f"{', '.join(str(case['load']) for case in record['cases'])}.",
    ]
    for d in dict.fromkeys(case["hidden"] for case in record["cases"]):
        cases = [case for case in record["cases"] if case["hidden"] == d]
        lines += ["", f"## d = {d}", "", *_table(cases)]
    reasons = {row["reason"]: None for case in record["cases"] for row in case["rows"]}
    lines += [f"\nEmpty cells: {reason}." for reason in reasons if reason]
    return "\n".join(lines) + "\n"


def _table(cases: list[Record]) -> list[str]:
    lines = [
        "| vocabulary | factored, ms | dense, ms | dense / factored | factored, MiB | dense, MiB | "
        "weights, MiB | reset, ms |",
        "|" + " --: |" * 8,
    ]
    for case in cases:
        row = {row["name"]: row for row in case["rows"]}
        ratio = (row[FACTORED].get("to_peers") or {}).get(DENSE)
        times = [spread(row[name].get("ms")) for name in (FACTORED, DENSE, RESET)]
        memory = [short(row[name].get("memory_mib")) for name in (FACTORED, DENSE)]
        gain = short(1 / ratio["median"]) if ratio else ""
        cells = [f"{case['vocab']:,}", *times[:2], gain, *memory, short(case["weights_mib"])]
        lines.append(line([*cells, times[2]]))
    return lines


def plot(record: Record, path: Path) -> None:
    """Time of a step and its memory against the vocabulary."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for number, d in enumerate(dict.fromkeys(case["hidden"] for case in record["cases"])):
        for name, style in ((FACTORED, "-"), (DENSE, "--")):
            points = [
                (case["vocab"], row["ms"]["median"], row["memory_mib"])
                for case in record["cases"]
                for row in case["rows"]
                if case["hidden"] == d and row["name"] == name and row["reason"] is None
            ]
            vocab, ms, mib = zip(*points, strict=True)
            for axis, values in zip(axes, (ms, mib), strict=True):
                axis.plot(
                    vocab, values, style, marker=".", color=f"C{number}", label=f"{name}, d={d}"
                )
    for axis, label in zip(
        axes, ("milliseconds", "peak memory beyond the weights, MiB"), strict=True
    ):
        axis.set(xscale="log", yscale="log", xlabel="vocabulary", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.suptitle(f"One training step of {BATCH} rows on {record['environment']['device']}")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every case and write factored-<device>.json, .md and .png."""
    options = _parser().parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stem = options.out / f"factored-{slug(device_name(device))}"
    effort = Effort(0.5, 3) if options.quick else Effort(6.0, 5)
    record: Record = {
        "environment": environment(device),
        "options": {"quick": options.quick},
        "cases": [],
    }
    begun = time.perf_counter()
    for case in QUICK if options.quick else FULL:
        print(f"vocabulary {case.vocab:,}, d = {case.hidden}", flush=True)
        record["cases"].append(run(case, device, effort))
    record["seconds"] = round(time.perf_counter() - begun, 1)
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_json(stem.with_suffix(".json"), record)
    write_text(stem.with_suffix(".md"), markdown(record))
    plot(record, stem.with_suffix(".png"))
    print(f"wrote {stem}.json, .md and .png")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.factored",
        description="Time and peak memory of a training step of FactoredSphericalHead, beside SGD\n"
        "on the same matrix in full, over vocabularies from 10,000 to 1,000,000.",
        epilog="Threads are PyTorch's: set OMP_NUM_THREADS to change them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small")
    add_out(parser)
    return parser


if __name__ == "__main__":
    main()

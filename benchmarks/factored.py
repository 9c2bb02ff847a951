"""Training step of the factored spherical layer compared with dense SGD, 10k to 1M words."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import plots
from benchmarks.race import Contestant, Race
from benchmarks.suite import Case, Pace, Record, Suite
from benchmarks.tables import cell, short, table
from benchmarks.timing import MIB, Task
from sparse_attn.heads.factored import FactoredSphericalHead

BATCH = 64
BATCHES = 8  # used in rotation
LR = 0.5
MOST_DENSE = 100_000_000  # weights; a larger step takes seconds and gigabytes
FACTORED, DENSE, RESET = "factored", "dense", "reset"
HEADINGS = (
    *("vocabulary", "factored, ms", "dense, ms", "dense / factored"),
    *("factored, MiB", "dense, MiB", "weights, MiB", "reset, ms"),
)


@dataclass(frozen=True)
class Factors(Case):
    """A vocabulary and a size d of the hidden states."""

    vocab: int
    hidden: int


class Factored(Suite[Factors, Contestant]):
    name = "factored"
    title = "The factored spherical layer"
    meaning = f"""\
A step is forward, backward to the hidden states and the update, on {BATCH} rows of
float32, of the spherical loss: `{FACTORED}` is FactoredSphericalHead, `{DENSE}` the same W in full,
with autograd and torch.optim.SGD. Times are medians in milliseconds with quartiles, over rounds in
which both run; the ratio is the median of those within a round. Memory is the peak of what PyTorch
allocates during a step beyond weights and inputs, gradients of the weights included. `{RESET}` is
what keeps the factored form stable and is not in the step: resetting one singular value of U. That
is looked for when a bound on them has passed a limit; most looks find nothing to reset, and cost
what does not depend on the vocabulary."""
    base = FACTORED
    paces: ClassVar = {"cpu": Pace(6, 5), "cuda": Pace(6, 5), "quick": Pace(0.5, 3)}

    def cases(self, device: str, options: argparse.Namespace) -> list[Factors]:
        sizes = itertools.product((100, 300), (10_000, 31_000, 100_000, 316_000, 1_000_000))
        return [
            Factors("factored", f"d = {d}, {vocab:,} words", vocab, d)
            for d, vocab in (((32, 1_000), (32, 10_000)) if options.quick else sizes)
        ]

    def contestants(self, case: Factors, device: torch.device) -> list[Contestant]:
        return [
            Contestant(FACTORED, "spherical", ours=True),
            Contestant(DENSE, "spherical", ours=False),
            Contestant(RESET, "reset", ours=True),
        ]

    def measure(self, case: Factors, race: Race[Contestant]) -> dict[str, Any]:
        problem = Problem(case, race.device)
        checks = problem.steps_between_checks()
        tasks = problem.tasks()
        weights = sum(t.nbytes for t in problem.head.state_dict().values()) / MIB
        return {
            "vocab": case.vocab,
            "hidden": case.hidden,
            "batch": BATCH,
            "weights_mib": round(weights, 1),
            "steps_between_checks": checks,
            "rows": race.rows(lambda contestant: tasks[contestant.name], "step"),
        }

    def sections(self, record: Record) -> list[str]:
        cases = record["cases"]
        checks = min((case["steps_between_checks"] for case in cases), default=0)
        lines = [
            f"The first look for a reset came after {checks} steps or more.",
            "",
            f"Processes that ran on its {record['environment']['cores']} cores meanwhile, this one "
            f"included: {', '.join(str(case['load']) for case in cases)}.",
        ]
        for d in dict.fromkeys(case["hidden"] for case in cases):
            cells = [_cells(case) for case in cases if case["hidden"] == d]
            lines += ["", f"## d = {d}", "", *table(HEADINGS, cells, text=0)]
        reasons = {row["reason"]: None for case in cases for row in case["rows"] if row["reason"]}
        return lines + [line for reason in reasons for line in ("", f"Empty cells: {reason}.")]

    def pictures(self, record: Record) -> dict[str, Figure]:
        """Plot time and memory of a step against the vocabulary."""
        figure = Figure((10, 4.2), layout="constrained")
        axes = figure.subplots(1, 2)
        sizes = list(dict.fromkeys(case["hidden"] for case in record["cases"]))
        labels = ("milliseconds", "peak memory beyond the weights, MiB")
        for axis, key, label in zip(axes, ("ms", "memory_mib"), labels, strict=True):
            for d, name in itertools.product(sizes, (FACTORED, DENSE)):
                cases = [case for case in record["cases"] if case["hidden"] == d]
                found = plots.curves(cases, "vocab", key, "step")
                look = {"linestyle": "-" if name == FACTORED else "--", "marker": "."}
                look["color"] = f"C{sizes.index(d)}"
                plots.draw(axis, found[name], look, f"{name}, d={d}")
            plots.logarithmic(axis, xlabel="vocabulary", ylabel=label)
        axes[0].legend(fontsize=8)
        figure.suptitle(f"One training step of {BATCH} rows on {record['environment']['device']}")
        return {"": figure}


def _cells(case: dict[str, Any]) -> list[str]:
    ratio = {row["name"]: row.get("to", {}) for row in case["rows"]}.get(FACTORED, {}).get(DENSE)
    return [
        cell(case, "vocab"),
        *(cell(case, name, "ms") for name in (FACTORED, DENSE)),
        short(1 / ratio["median"]) if ratio else "",
        *(cell(case, name, "memory_mib") for name in (FACTORED, DENSE)),
        cell(case, "weights_mib"),
        cell(case, RESET, "ms"),
    ]


class Problem:
    """Both layers with the same weights, and the batches."""

    def __init__(self, case: Factors, device: torch.device) -> None:
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
        """Return the timed steps by name."""
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
        """Do one step of the factored layer."""
        self.head(hidden, targets).backward()
        self.head.step(LR)

    def dense(self, hidden: Tensor, targets: Tensor) -> None:
        """Do one step on the dense W in its cheapest form, with the three sums of the loss."""
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
        """Move a singular value of U out of bounds, alternately up and down."""
        matrix = self.head.matrix
        matrix.stabilise()
        matrix.U[0] *= self.factor
        self.factor = 1 / self.factor

    def steps_between_checks(self) -> int:
        """Count the steps that double the bound on singular values, from NEAR to FAR."""
        self.head.matrix.stabilise()
        before = self.head.matrix.spread.item()
        for _ in range(BATCHES):
            self._next(self.factored)
        moved = (self.head.matrix.spread.item() - before) / BATCHES
        return int(torch.tensor(2.0).log().item() / moved)

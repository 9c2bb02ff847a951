"""Which share of the processor's multiply-adds attention reaches, forward and backward."""

from __future__ import annotations

import argparse
import ctypes
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks import sparsity
from benchmarks.attention import peers
from benchmarks.attention.cases import Problem
from benchmarks.attention.contestants import share_of_zeros
from benchmarks.race import Contestant, Race, Row
from benchmarks.sparsity import SDPA, SOFTMAX
from benchmarks.suite import Pace, Suite
from benchmarks.tables import measured, reasons, short, spread, table
from benchmarks.timing import Task, processor_clock, threads
from sparse_attn.kernels import attention
from sparse_attn.kernels.cpu import build

FMA = "multiply-adds"
STEPS = 10_000_000
SPARSE = ("sparsemax", "entmax alpha=1.5")
PASSES = ("forward", "backward")


class Peak(Suite[sparsity.Case, Contestant]):
    name = "peak"
    title = "Close to the limit"
    meaning = f"""\
Processor time of one thread, in milliseconds, medians with quartiles. `{FMA}` are independent ones
in registers, compiled as the kernels are: their rate, measured in the same interleaved rounds, is
the peak. `GFLOP` counts the matrix products that are needed, two operations to a multiply-add: two
products of queries and keys forward and five backward for softmax, where backward computes the
scores again; for the sparse mappings the scores of all pairs once, and the other product forward
and four backward over the pairs with a weight alone. Exponentials, searches and sums do not count.
`backward` starts from what the forward pass kept."""
    base = FMA
    paces: ClassVar = {"cpu": Pace(10, 5, 120), "quick": Pace(1, 3, 60)}

    def cases(self, device: str, options: argparse.Namespace) -> list[sparsity.Case]:
        lengths = (512,) if options.quick else (128, 512, 2048)
        return [sparsity.Case("peak", f"N={n}", 1, n, 8192 // n) for n in lengths]

    def contestants(self, case: sparsity.Case, device: torch.device) -> list[Contestant]:
        return [
            Contestant(FMA, "", False),
            Contestant(SDPA, SOFTMAX, False),
            *(Contestant(f"ours {name}", name, True) for name in (SOFTMAX, *SPARSE)),
        ]

    def measure(self, case: sparsity.Case, race: Race[Contestant]) -> dict[str, Any]:
        data, rows = case.problem(), list[Row]()
        for which in PASSES:
            make = functools.partial(task_of, data, which)
            with threads(1), torch.set_grad_enabled(which == PASSES[1]):
                rows += race.rows(make, which, clock=processor_clock, memory=False)
        return {"length": case.length, "heads": case.heads, "rows": rows}

    def section(self, case: dict[str, Any]) -> list[str]:
        by = {(row["name"], row["pass"]): row for row in case["rows"] if row["reason"] is None}
        lines = []
        for name in dict.fromkeys(name for name, _ in by):
            cells = [name]
            for which in PASSES:
                row, peak = by.get((name, which)), by.get((FMA, which))
                cells += _cells(row, peak) if row and peak else [""] * 4
            lines.append(cells)
        columns = ("ms", "GFLOP", "GFLOP/s", "of the peak")
        headings = ["", *(f"{which}, {column}" for which in PASSES for column in columns)]
        head = [f"## {case['name']}", "", f"{case['title']}.", *measured(case), ""]
        return [*head, *table(headings, lines), *reasons(case["rows"])]


def _cells(row: Row, peak: Row) -> list[str]:
    share = row["gflop"] / peak["gflop"] / row["to"][FMA]["median"]
    speed = 1e3 * row["gflop"] / row["ms"]["median"]
    return [spread(row["ms"]), short(row["gflop"]), short(speed), f"{share:.0%}"]


def task_of(data: Problem, which: str, contestant: Contestant) -> Task:
    """A pass of attention, or the loop, with the operations it needs."""
    if contestant.name == FMA:
        loop = fma_loop()
        return Task(lambda: loop(STEPS), facts={"gflop": loop(1) * STEPS / 1e9})
    forward = peers.sdpa(data, None)
    if contestant.ours:
        forward = functools.partial(attention, mapping=sparsity.MAPPINGS[contestant.mapping])
    pairs = data.query.numel() * data.key.shape[2]
    facts = {"gflop": 2e-9 * pairs * products(data, which, contestant.mapping)}
    if which == "forward":
        return Task(data.call(forward), facts=facts)
    inputs = [tensor.detach().requires_grad_() for tensor in data.inputs]
    outputs = list[Tensor]()

    def prepare() -> None:
        outputs[:] = [forward(*inputs)]

    return Task(lambda: torch.autograd.grad(outputs, inputs, data.grad), prepare, facts)


def products(data: Problem, which: str, mapping: str) -> float:
    """How many products over all pairs of queries and keys a pass needs."""
    if mapping == SOFTMAX:
        return {"forward": 2, "backward": 5}[which]
    weights = 1 - share_of_zeros(data, sparsity.MAPPINGS[mapping])
    return 1 + weights if which == "forward" else 4 * weights


@functools.cache
def fma_loop() -> Callable[[int], int]:
    """Runs so many steps of fma.cpp, compiled as the kernels are; returns the operations done."""
    compiler = build._compiler()
    *_, flags = build._flag_choices(build._run([*compiler, "--version"]))
    source = Path(__file__).with_name("fma.cpp")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "fma.so")
        build._run([*compiler, str(source), f"-I{build.SOURCE}", *flags, "-o", str(target)])
        function = ctypes.CDLL(str(target)).multiply_add
    function.restype = ctypes.c_int64
    result = ctypes.c_float()
    return lambda steps: function(ctypes.c_int64(steps), ctypes.byref(result))

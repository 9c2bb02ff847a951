"""Attention in half precision against the reference in float64, and what the GPU can do at most."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from benchmarks.gpu.stage import Result, Setup
from benchmarks.timing import DeviceClock, rounded, wall_clock
from tests.kernels.problems import SOLVERS, Problem, assert_within_budget, solve

COPY, PRODUCT = "copy", "bf16 product"
UNITS = {COPY: "GB/s", PRODUCT: "TFLOP/s"}
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES = {
    "N=128 bf16": Problem("", batch=4, heads=4, kv_heads=4, queries=128, keys=128, dim=64),
    "N=79 padded bf16": Problem("", queries=79, keys=79, dim=64, key_lengths=(79, 41)),
    "N=512 masked fp16": Problem("", kv_heads=1, queries=512, keys=512, dim=64, mask="B1QK"),
    "N=2048 causal bf16": Problem("", queries=2048, keys=2048, dim=64, options={"causal": True}),
    "1 query fp16": Problem("", queries=1, keys=3000, dim=128),
}
TINY = {"N=17 padded fp16": Problem("", queries=17, keys=17, dim=16, key_lengths=(17, 9))}


def problems(setup: Setup) -> dict[str, Problem]:
    """One for each solver and shape; the interpreter multiplies bfloat16 wrongly."""
    shapes, solvers = (TINY, SOLVERS[:2]) if setup.rehearse else (SHAPES, SOLVERS)
    return {
        f"{mapping} {name}": replace(shape, mapping=mapping, params=params)
        for name, shape in shapes.items()
        for mapping, params in solvers
    }


def cases(setup: Setup) -> list[str]:
    """Their names, which end in the type."""
    return list(problems(setup))


def run(setup: Setup, case: str, seconds: float) -> Result:
    """Check a problem."""
    check(problems(setup)[case], HALVES[case.rpartition(" ")[2]], setup.device.type)
    return {}


def check(problem: Problem, dtype: torch.dtype, device: str) -> None:
    """Raise AssertionError unless the error is small, and two calls agree to the last bit."""
    with poisoned():
        assert_within_budget(problem, "triton", dtype, device)
        one, other = (solve(problem, "triton", dtype, dtype, device) for _ in range(2))
    changed = [name for name in one if not torch.equal(one[name], other[name])]
    assert not changed, f"{', '.join(changed)}: two calls differ"


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill what `torch.empty` returns with NaN, so that a kernel must write all of it."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the reference, which need not be deterministic
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def peaks(setup: Setup) -> list[str]:
    """What the GPU can do at most."""
    return list(UNITS)


def peak(setup: Setup, case: str, seconds: float) -> Result:
    """The most bytes a copy reads and writes in a second, or operations of a square product."""
    side = 256 if setup.rehearse else 8192
    clock = wall_clock if setup.rehearse else DeviceClock(cold=False)
    # zeros would draw less power, and so run faster
    one, other = torch.randn(2, side, side, device=setup.device).bfloat16()
    source = torch.randn(4 * side * side, device=setup.device)
    target = torch.empty_like(source)
    calls = {COPY: lambda: target.copy_(source), PRODUCT: lambda: one @ other}
    best = min(clock(calls[case]) for _ in range(20))
    amount = 2 * source.nbytes / 1e6 if case == COPY else 2 * side**3 / 1e9
    return {UNITS[case]: rounded(amount / best)}


def main(device: str) -> None:
    """Four small calls, forward and backward, for compute-sanitizer."""
    for mapping, params in (SOLVERS[1], SOLVERS[2], SOLVERS[4], SOLVERS[0]):
        solve(Problem(mapping, params, dim=16), "triton", torch.float16, torch.float16, device)


if __name__ == "__main__":
    main(*sys.argv[1:])

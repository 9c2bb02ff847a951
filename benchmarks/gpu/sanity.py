"""Half-precision attention checked against the float64 reference, and peak rates of the GPU."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

# private: only these counts say that Inductor skipped CUDA graphs
from torch._dynamo.utils import counters

from benchmarks.attention import step
from benchmarks.attention.cases import AttentionCase
from benchmarks.attention.contestants import CURVES, MAPPINGS
from benchmarks.gpu import suites
from benchmarks.gpu.stage import Result, Setup
from benchmarks.timing import DeviceClock, rounded, wall_clock
from tests.kernels.problems import SOLVERS, Inputs, Problem, assert_within_budget, solve

COPY, PRODUCT = "copy", "bf16 product"
UNITS = {COPY: "GB/s", PRODUCT: "TFLOP/s"}
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Triton compiles one kernel for all batches, lengths and numbers of heads with the same
# divisibility by 16. These match the attention cases, so the first stage compiles for them.
SHAPES = {
    "N=128 bf16": Problem("", batch=4, heads=4, kv_heads=4, queries=128, keys=128, dim=64),
    "N=512 bf16": Problem("", heads=4, kv_heads=4, queries=512, keys=512, dim=64),
    "MRPC bf16": Problem("", heads=4, kv_heads=4, queries=79, keys=79, dim=64, mask="B11K"),
    "causal bf16": Problem(
        "", batch=1, heads=16, kv_heads=16, queries=1152, keys=1152, dim=64,
        options={"causal": True},
    ),
}  # fmt: skip
LENGTHS = replace(SHAPES["MRPC bf16"], mask=None, key_lengths=(79, 41))
DECODING = Problem("", queries=1, keys=3000, dim=128)
TINY = Problem("", queries=17, keys=17, dim=16, key_lengths=(17, 9))
STEP = "training step"
SEPARATOR = ": "


def problems(setup: Setup) -> dict[str, Problem]:
    """Return every mapping as it is timed, and a call of few queries for each solver."""
    if setup.rehearse:  # the interpreter multiplies bfloat16 wrongly
        return _with(TINY, "N=17 padded fp16", SOLVERS[:2])
    timed = {title: (title.partition(" ")[0], params) for title, params in MAPPINGS.items()}
    found = {
        f"{title}{SEPARATOR}{name}": replace(shape, mapping=mapping, params=params)
        for name, shape in SHAPES.items()
        for title, (mapping, params) in timed.items()
    }
    found |= _with(LENGTHS, "key lengths bf16", [timed[name] for name in CURVES])
    return {**found, **_with(DECODING, "1 query fp16", SOLVERS)}


def _with(
    shape: Problem, name: str, mappings: Iterable[tuple[str, dict[str, Any]]]
) -> dict[str, Problem]:
    return {
        f"{mapping}{SEPARATOR}{name}": replace(shape, mapping=mapping, params=params)
        for mapping, params in mappings
    }


def cases(setup: Setup) -> list[str]:
    """Return the problems with each type as suffix, and training steps of patched models."""
    names = step.PATCHED[:2] if setup.rehearse else step.PATCHED
    steps = [(model, name) for model in suites.steps(setup) for name in names]
    steps += [(model, step.PATCHED[0]) for model in suites.compiled(setup)]
    return [*problems(setup), *(f"{name}{SEPARATOR}{STEP} of {model}" for model, name in steps)]


def run(setup: Setup, case: str, seconds: float) -> Result:
    """Check a problem, or check that a training step has finite gradients."""
    name, _, what = case.partition(SEPARATOR)
    if what.startswith(STEP):
        check_step(suites.every(setup)[what.removeprefix(f"{STEP} of ")], name, setup.device)
    else:
        check(problems(setup)[case], HALVES[case.rpartition(" ")[2]], setup.device.type)
    return {}


def check(problem: Problem, dtype: torch.dtype, device: str) -> None:
    """Raise AssertionError unless the error is small and calls agree.

    Two training calls must agree to the last bit, and inference must agree with them to rounding.
    """
    with poisoned():
        assert_within_budget(problem, "triton", dtype, device)
        one, other = (solve(problem, "triton", dtype, dtype, device) for _ in range(2))
        with torch.no_grad():
            alone = Inputs(problem, dtype, dtype, device).attend("triton")
    changed = [name for name in one if not torch.equal(one[name], other[name])]
    assert not changed, f"{', '.join(changed)}: two calls differ"
    allowed = 4 * torch.finfo(dtype).eps * max(1.0, one["output"].abs().max().item())
    assert (alone - one["output"]).abs().max() <= allowed, "inference differs"


def check_step(case: AttentionCase, mapping: str, device: torch.device) -> None:
    """Raise AssertionError unless the weights are finite after a step of two sentences.

    A compiled step must also be one graph that Inductor replays as a CUDA graph.
    """
    lengths = case.lengths and case.lengths[:2]
    trainer = step.Trainer(replace(case, batch=2, lengths=lengths), device)
    trainer.use(mapping)
    if case.name.startswith(step.COMPILED):
        trainer.compile()
        counters["inductor"].clear()
        trainer.step()
        trainer.step()
        skips = counters["inductor"]["cudagraph_skips"]
        assert not skips, f"Inductor skipped CUDA graphs {skips} times"
    trainer.step()
    wrong = [name for name, p in trainer.model.named_parameters() if not p.isfinite().all()]
    assert not wrong, f"not finite after a step: {', '.join(wrong[:5])}"


@contextmanager
def poisoned() -> Iterator[None]:
    """Make `torch.empty` return NaN, so that entries that a kernel does not write show up."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reference need not be deterministic
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def peaks(setup: Setup) -> list[str]:
    """Return the measurements of peak rates."""
    return list(UNITS)


def peak(setup: Setup, case: str, seconds: float) -> Result:
    """Measure the peak bytes per second of a copy, or operations per second of a square product."""
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
    """Run four small calls, forward and backward, for compute-sanitizer."""
    for mapping, params in (SOLVERS[1], SOLVERS[2], SOLVERS[4], SOLVERS[0]):
        solve(Problem(mapping, params, dim=16), "triton", torch.float16, torch.float16, device)


if __name__ == "__main__":
    main(*sys.argv[1:])

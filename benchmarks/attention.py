"""Measure the contestants of one attention case."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case, Problem, problem
from benchmarks.contestants import MAPPINGS, Contestant, Ours, contestants
from benchmarks.peers import Forward
from benchmarks.report import BASE, rows
from benchmarks.timing import (
    DeviceClock,
    Effort,
    Measurement,
    Task,
    measure,
    peak_memories,
    reason,
    wall_clock,
)
from sparse_attn.kernels import attention
from sparse_attn.mappings import Mapping

PASSES = ("forward", "forward+backward")
CHECKED = 2048  # longest rows whose outputs are compared with the reference
# of outputs that are averages of standard normal values
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}
# scores that nearly tie may swap places in the quantile of r-softmax: one row of thousands differs
GRADIENT_TOLERANCE = {torch.float32: 2e-2, torch.bfloat16: 0.5}


def run(case: Case, device: torch.device, effort: Effort, skip: str | None) -> list[dict[str, Any]]:
    """The rows of a case: every contestant, pass and cache."""
    torch._dynamo.reset()  # the variants of earlier cases count towards its limit
    data = problem(case, device)
    chosen = [c for c in contestants(case, device) if not (skip and skip in c.name)]
    found: list[dict[str, Any]] = []
    facts: dict[str, dict[str, Any]] = {c.name: {} for c in chosen}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SDPA warns why a backend refuses, then raises
        for which in PASSES:
            tasks, failed = _tasks(chosen, data, which, facts, effort)
            for cache in case.caches:
                clock = wall_clock if cache == "" else DeviceClock(cold=cache == "cold")
                measured = {**measure(tasks, clock, effort, BASE), **failed}
                if cache == case.caches[0]:
                    for name, mib in peak_memories(tasks, measured, device, effort).items():
                        facts[name][f"memory {which}"] = mib
                found += rows(measured, chosen, which, cache, facts)
    return found


def _tasks(
    chosen: list[Contestant],
    data: Problem,
    which: str,
    facts: dict[str, dict[str, Any]],
    effort: Effort,
) -> tuple[dict[str, Task], dict[str, Measurement]]:
    """What can be timed, and why the rest cannot; outputs are checked on the way."""
    tasks, failed = {}, {}
    expected: dict[str, list[Tensor]] = {}
    train = which == PASSES[1]
    with torch.set_grad_enabled(train):
        for contestant in chosen:
            name = contestant.name
            if effort.over:
                failed[name] = Measurement(reason="no time left")
                continue
            try:
                if isinstance(contestant, Ours):
                    facts[name]["implementation"] = contestant.implementation(data)
                run = _call(contestant.make(data), data, train)
                _check(contestant.mapping, run, data, expected, facts[name])
                tasks[name] = Task(run)
            except Exception as error:
                failed[name] = Measurement(reason=reason(error))
    return tasks, failed


def _call(forward: Forward, data: Problem, train: bool) -> Callable[[], tuple[Tensor, ...]]:
    """Forward as in inference, or forward and the gradients to query, key and value."""

    def infer() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (forward(*data.inputs),)

    inputs = tuple(t.detach().requires_grad_() for t in data.inputs)

    def learn() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(*inputs), inputs, data.grad)

    return learn if train else infer


def _check(
    name: str,
    run: Callable[[], tuple[Tensor, ...]],
    data: Problem,
    expected: dict[str, list[Tensor]],
    facts: dict[str, Any],
) -> None:
    """Compare with the reference in float32; a time of something else would mean nothing.

    An output in the forward pass by its greatest error, gradients by the norm of theirs, for a
    gradient may jump where scores are rounded. A wrong output is wrong in both passes.

    Raises:
        ValueError: too far from it.
    """
    case, train = data.case, torch.is_grad_enabled()
    if "wrong" not in facts and not case.dropout and case.length <= CHECKED:
        if name not in expected:
            expected[name] = _expected(name, data.first(), train)
        valid = case.length if case.lengths is None else case.lengths[0]
        pairs = [
            (ours[:1, :2, :valid].float(), theirs[:, :, :valid])
            for ours, theirs in zip(run(), expected[name], strict=True)
        ]
        if train:
            error = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
            tolerance = GRADIENT_TOLERANCE[data.query.dtype]
        else:
            error = (pairs[0][0] - pairs[0][1]).abs().max().item()
            tolerance = TOLERANCE[data.query.dtype]
        facts["gradient_error" if train else "max_error"] = error
        if not error <= tolerance:
            kind = "its gradients differ" if train else "differs"
            facts["wrong"] = f"wrong: {kind} from the float32 reference by {error:.2g}"
    if "wrong" in facts:
        raise ValueError(facts["wrong"])


def _expected(name: str, sample: Problem, train: bool) -> list[Tensor]:
    mapping = Mapping(name, **MAPPINGS[name])

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        causal = sample.case.causal
        return attention(q, k, v, mapping, mask=sample.mask, causal=causal, impl="reference")

    return [t.detach() for t in _call(forward, sample, train)()]

"""Stages made of the cases of `benchmarks.attention`: compile them, then measure them."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

from benchmarks.attention import cases, step
from benchmarks.attention.cases import Case
from benchmarks.attention.suite import Attention, Checked
from benchmarks.command import Parser
from benchmarks.gpu.stage import Result, Setup
from benchmarks.measure import measure_case
from benchmarks.record import Files
from benchmarks.timing import Effort

PATIENCE = 90.0  # seconds for a case
GROUPS = ("attention", "step", "causal")
COMPILED = ("ours ", "FlexAttention", "AdaSplash", "Liger")
SUITE = Attention()
TINY = [
    Case("attention", "N=128", 1, 16, 2, 16, few=True),
    Case("step", "BERT-tiny", 2, 8, model="BERT-tiny", few=True),
    Case("causal", "causal N=8", 1, 8, 2, 16, causal=True, few=True),
]


def cases_of(setup: Setup, *groups: str) -> dict[str, Case]:
    """The cases of groups by name, without those of models that would have to be fetched."""
    found = TINY if setup.rehearse else cases.cases("cuda", quick=False)
    return {c.name: c for c in found if c.group in groups and c.model in ("", *step.RANDOM)}


def compilations(setup: Setup) -> list[str]:
    """A name for each contestant of each case that compiles kernels; longest cases first."""
    found = sorted(cases_of(setup, *GROUPS).items(), key=lambda item: -item[1].length)
    return [
        f"{name}: {contestant.name}"
        for name, case in found
        for contestant in SUITE.contestants(case, setup.device)
        if contestant.name.startswith(COMPILED) and "[reference]" not in contestant.name
    ]


def compile_kernels(setup: Setup, name: str, seconds: float) -> Result:
    """Fill the caches of Triton and of torch.compile by running a contestant once."""
    title, _, who = name.partition(": ")
    case = cases_of(setup, *GROUPS)[title]
    contestant: Any = next(c for c in SUITE.contestants(case, setup.device) if c.name == who)
    step_of = case.group == "step"
    make = step.maker(case, setup.device) if step_of else Checked(case, setup.device).task
    try:
        for train in (True,) if step_of else (False, True):
            with torch.set_grad_enabled(train):
                task = make(contestant)
                task.prepare()
                task.run()
    except (ModuleNotFoundError, NotImplementedError) as error:
        if contestant.ours:
            raise
        return {"skipped": str(error)}
    torch.cuda.empty_cache()  # of the process, which the others share the GPU with
    return {}


def benchmarks(setup: Setup) -> list[str]:
    """Attention and training steps."""
    return list(cases_of(setup, "attention", "step"))


def causal(setup: Setup) -> list[str]:
    """Long causal rows, the longest first."""
    found = cases_of(setup, "causal")
    return sorted(found, key=lambda name: -found[name].length)


def measure(setup: Setup, name: str, seconds: float) -> Result:
    """Measure a case, and add it to the record of the suite."""
    pace = SUITE.paces["quick" if setup.rehearse else "cuda"]
    # a contestant for whom no time is left says so, a process that is ended says nothing
    effort = Effort(pace.seconds, pace.least, deadline=time.perf_counter() + 0.8 * PATIENCE)
    measure_case(_files(setup), cases_of(setup, *GROUPS)[name], setup.device, effort)
    return {}


@functools.cache
def _files(setup: Setup) -> Files:
    quick = ["--quick"] * setup.rehearse
    options = Parser().parse([SUITE.name, "--keep", "--out", str(setup.out), *quick])
    return Files(SUITE, setup.device, options)

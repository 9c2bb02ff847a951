"""Host time of a layer of attention, measured with launches that do nothing."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

from benchmarks import suite
from benchmarks.decoding import INTEGRATION, Layer
from benchmarks.machine.compiled import NoGpu
from benchmarks.race import Contestant, Race, Row
from benchmarks.suite import Pace, Suite
from benchmarks.tables import measured, reasons, spread, table
from benchmarks.timing import Task, processor_clock, threads, wall_clock
from sparse_attn.hf.attention import NAME, sparse_attention
from sparse_attn.kernels import dispatch, operators, triton
from sparse_attn.kernels.triton import again, launch
from sparse_attn.mappings import Mapping

LAYERS = 24
SHAPE = (2, 16, 2, 16)  # shape in a model: batch, length, heads, head_dim
PASSES = ("forward", "backward")
OURS, DISPATCHED = "ours", "ours, dispatched"
MAPPINGS = {
    "softmax": Mapping("softmax"),
    "r-softmax": Mapping("r-softmax"),
    "sparsemax": Mapping("sparsemax"),
    "entmax": Mapping("entmax", alpha=1.5),
    "t-softmax, learned": Mapping("t-softmax", t=4.0, learn="t"),
}


@dataclass(frozen=True)
class HostCase(suite.Case):
    """A case; `masked` adds padding and dropout, as in the training of BERT."""

    masked: bool
    layers: int = LAYERS

    @property
    def title(self) -> str:
        return "With padding and dropout" if self.masked else "Neither mask nor dropout"


class Host(Suite[HostCase, Contestant]):
    name = "host"
    title = "What a layer costs the host"
    meaning = f"""\
Microseconds a layer, medians with quartiles over runs of {LAYERS} layers. Without a GPU Triton does
all but the launch, for tensors on the CPU and a GPU of capability 9.0, so that neither kernels nor
launches count. A layer is a call of the function that patch_model installs; its output is the query
of the next. `{DISPATCHED}` goes through PyTorch's dispatcher, as calls do that a profiler
observes. `{INTEGRATION}` does compute, 16 tokens of 2 heads in bfloat16. Processor time
of one thread, or wall time on a GPU."""
    base = INTEGRATION
    paces: ClassVar = {"cpu": Pace(20, 5, 120), "cuda": Pace(20, 5, 120), "quick": Pace(1, 3, 60)}

    def cases(self, device: str, options: argparse.Namespace) -> list[HostCase]:
        return [HostCase("host", "plain", False), HostCase("host", "BERT", True)]

    def contestants(self, case: HostCase, device: torch.device) -> list[Contestant]:
        return [
            Contestant(INTEGRATION, "softmax", False),
            Contestant(f"{DISPATCHED} softmax", "softmax", True),
            *(Contestant(f"{OURS} {label}", label, True) for label in MAPPINGS),
        ]

    def measure(self, case: HostCase, race: Race[Contestant]) -> dict[str, Any]:
        rows = list[Row]()
        clock = processor_clock if race.device.type == "cpu" else wall_clock
        with without_launches(race.device), threads(1):
            for which in PASSES:
                task = functools.partial(task_of, case, which, race.device)
                rows += race.rows(task, which, clock=clock, memory=False)
        return {"layers": case.layers, "rows": rows}

    def section(self, case: dict[str, Any]) -> list[str]:
        by = {(row["name"], row["pass"]): row for row in case["rows"] if row["reason"] is None}
        lines = [
            [name, *(text for which in PASSES for text in _cells(by.get((name, which)), case))]
            for name in dict.fromkeys(name for name, _ in by)
        ]
        headings = [head for which in PASSES for head in (f"{which}, us", f"/ {self.base}")]
        head = [f"## {case['name']}", "", f"{case['title']}.", *measured(case), ""]
        return [*head, *table(["contestant", *headings], lines), *reasons(case["rows"])]


def _cells(row: Row | None, case: dict[str, Any]) -> list[str]:
    if row is None:
        return ["", ""]
    us = {name: 1e3 * ms / case["layers"] for name, ms in row["ms"].items()}
    return [spread(us), spread(row["to"][Host.base])]


def task_of(case: HostCase, which: str, device: torch.device, contestant: Contestant) -> Task:
    """Return a task: all layers forward, or their backward pass after a forward pass."""
    run = model(case, contestant, device)
    inputs, grad = random(device, 1 + 2 * case.layers), *random(device, 1)
    if which == "forward":
        return Task(lambda: run(*inputs))
    outputs = list[Tensor]()

    def prepare() -> None:
        outputs[:] = [run(*inputs)]

    return Task(lambda: torch.autograd.grad(outputs, inputs, grad), prepare)


def random(device: torch.device, number: int) -> list[Tensor]:
    """Return random tensors (B, H, N, D) with the memory layout of a model."""
    made = (torch.randn(SHAPE, device=device).bfloat16() for _ in range(number))
    return [tensor.transpose(1, 2).requires_grad_() for tensor in made]


def model(case: HostCase, contestant: Contestant, device: torch.device) -> Callable[..., Tensor]:
    """Return all layers as one function of the query and of each layer's key and value."""
    module = Layer().train()
    function: Callable[..., tuple[Tensor, Tensor | None]] = sdpa_attention_forward
    if contestant.ours:
        function = sparse_attention
        setattr(module, NAME, MAPPINGS[contestant.mapping].to(device))
    options: dict[str, Any] = {"attention_mask": None, "scaling": 0.25}
    if case.masked:
        batch, length, *_ = SHAPE
        mask = torch.ones(batch, 1, 1, length, dtype=torch.bool, device=device)
        options |= {"attention_mask": mask.expand(-1, -1, length, -1), "dropout": 0.1}

    def forward(query: Tensor, *pairs: Tensor) -> Tensor:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            query = function(module, query, key, value, **options)[0].transpose(1, 2)
        return query

    if not contestant.name.startswith(DISPATCHED):
        return forward
    # a mock would be slower than the function that it replaces
    return mock.patch.object(operators, "is_observed", len)(
        mock.patch.object(again, "is_observed", len)(forward)
    )


@contextmanager
def without_launches(device: torch.device) -> Iterator[None]:
    """Let Triton do all but the launch of its kernels, where there is no GPU."""
    if device.type == "cuda":
        yield
    elif triton.INTERPRETED:  # as in the tests
        with stubbed():
            yield
    else:
        driver.set_active(NoGpu(90))
        try:
            with chosen():
                yield
        finally:
            driver.set_active(None)  # the default, where there is one


@contextmanager
def stubbed() -> Iterator[None]:
    """Replace the kernels of the Triton implementation by ones that do nothing, also on a CPU."""
    kernels = [n for n, made in vars(launch).items() if isinstance(made, KernelInterface)]
    with mock.patch.dict(vars(launch), dict.fromkeys(kernels, Nothing())), chosen():
        yield


@contextmanager
def chosen() -> Iterator[None]:
    """Make the Triton kernels the first choice on the CPU."""
    with (
        mock.patch.object(triton, "INTERPRETED", True),
        mock.patch.dict(dispatch.AUTOMATIC, cpu=("triton", "reference")),
    ):
        yield


class Nothing:
    """A kernel that is launched and does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **options: None

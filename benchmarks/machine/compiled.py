"""Compiles the kernels of calls and prints what their machine code holds, as JSON.

Of each call: the kernels by name, as bytes of `shared` memory and the fields of `sass.Kernel`, of
which the code is counted by name. It has a process of its own, because Triton then takes an absent
GPU for the one there is; `program` is what that runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from benchmarks.machine.sass import disassemble
from sparse_attn import Mapping as Mapping  # for `program`
from sparse_attn.kernels import triton as kernels
from sparse_attn.kernels.inputs import AttentionInputs

SHARED = {80: 166912, 86: 101376, 90: 232448}  # bytes that one program may use


class NoGpu:
    """What Triton asks of a driver before it launches; a warm-up does not launch."""

    def __init__(self, capability: int):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


class WarmUp:
    """In place of a kernel: compiles it and keeps what came of it in `found`."""

    found: dict[str, Any]

    def __init__(self, kernel: Any):
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def warm_up(*args: Any, **kwargs: Any) -> None:
            made = self.kernel.warmup(*args, grid=grid, **kwargs)
            WarmUp.found[self.kernel.__name__] = made

        return warm_up


def qkv(
    length: int,
    dim: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    heads: tuple[int, int, int] = (2, 2, 2),
    queries: int | None = None,
) -> list[Tensor]:
    """Queries, keys and values; without gradients where `queries` says how many."""
    lengths = (queries or length, length, length)
    return [
        torch.zeros(1, h, n, dim, dtype=dtype, requires_grad=queries is None)
        for h, n in zip(heads, lengths, strict=True)
    ]


def program(capability: int, calls: Iterable[str], function: str = "print_compiled") -> str:
    """Python that prints what calls compile to; a call is the arguments of `AttentionInputs`."""
    made = ", ".join(f"lambda: AttentionInputs({call})" for call in calls)
    return f"from {__name__} import *\n{function}({capability}, [{made}])"


def print_compiled(capability: int, calls: Iterable[Callable[[], AttentionInputs]]) -> None:
    """To standard output, as JSON."""
    replace_driver(capability)
    json.dump([compiled(call()) for call in calls], sys.stdout)


def print_errors(capability: int, calls: Iterable[Callable[[], AttentionInputs]]) -> None:
    """Of each call the error of its compilation, or how many kernels it compiled, as JSON."""
    replace_driver(capability)
    found: list[str | int] = []
    for call in calls:
        try:
            found.append(len(warmed_up(call())))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    json.dump(found, sys.stdout)


def replace_driver(capability: int) -> None:
    """Make Triton compile for a GPU that is not there."""
    driver.set_active(NoGpu(capability))
    kernels.plan.shared_memory = lambda tensor: SHARED[capability]
    for name, kernel in list(vars(kernels.launch).items()):
        if name.endswith("_kernel"):
            setattr(kernels.launch, name, WarmUp(kernel))


def compiled(inputs: AttentionInputs) -> dict[str, Any]:
    """What the machine code of each kernel of a call holds."""
    found = {}
    for name, made in warmed_up(inputs).items():
        kernel = disassemble(made.asm["cubin"])
        found[name] = {
            "shared": made.metadata.shared,
            "stack": kernel.stack,
            "code": kernel.code.names,
            "loops": [loop.names for loop in kernel.loops],
        }
    return found


def warmed_up(inputs: AttentionInputs) -> dict[str, Any]:
    """The compiled kernels of a call by name, of its backward pass too if it has one."""
    WarmUp.found = {}
    output = kernels.attention(inputs).output
    if output.requires_grad:
        output.backward(torch.ones_like(output))
    return WarmUp.found

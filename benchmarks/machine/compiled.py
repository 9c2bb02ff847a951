"""Compile the kernels of calls and print a summary of their machine code as JSON.

The output has, for each call, the kernels by name: bytes of `shared` memory and the fields of
`sass.Kernel`, with instructions counted by name. Run it in a separate process, by `program`,
because it makes Triton compile for an absent GPU.
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
    """Driver for which Triton compiles and does all else, except that a launch does nothing."""

    class launcher_cls:  # noqa: N801 - Triton's name
        def __init__(self, source: Any, metadata: Any):
            pass

        def __call__(self, *arguments: Any) -> None:
            pass

    def __init__(self, capability: int):
        self.target = GPUTarget("cuda", capability, 32)
        self.utils = self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED[self.target.arch]}

    def load_binary(self, name: str, *rest: Any) -> tuple[int, ...]:
        """Return module, function, registers, spills and most threads."""
        return 1, 1, 0, 0, 1024

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


class WarmUp:
    """Replacement for a kernel that only compiles it and keeps the result in `found`."""

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
    """Return queries, keys and values; without gradients if `queries` sets their number."""
    lengths = (queries or length, length, length)
    return [
        torch.zeros(1, h, n, dim, dtype=dtype, requires_grad=queries is None)
        for h, n in zip(heads, lengths, strict=True)
    ]


def program(capability: int, calls: Iterable[str], function: str = "print_compiled") -> str:
    """Return Python code that calls `function`; a call is the arguments of `AttentionInputs`."""
    made = ", ".join(f"lambda: AttentionInputs({call})" for call in calls)
    return f"from {__name__} import *\n{function}({capability}, [{made}])"


def print_compiled(capability: int, calls: Iterable[Callable[[], AttentionInputs]]) -> None:
    """Print the summary of each call as JSON."""
    replace_driver(capability)
    json.dump([compiled(call()) for call in calls], sys.stdout)


def print_errors(capability: int, calls: Iterable[Callable[[], AttentionInputs]]) -> None:
    """Print, as JSON, the compilation error or the number of compiled kernels of each call."""
    replace_driver(capability)
    found: list[str | int] = []
    for call in calls:
        try:
            found.append(len(warmed_up(call())))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    json.dump(found, sys.stdout)


def replace_driver(capability: int) -> None:
    """Make Triton compile for an absent GPU."""
    driver.set_active(NoGpu(capability))
    kernels.plan.shared_memory = lambda tensor: SHARED[capability]
    kernels.plan.settings.capability_of = lambda device: divmod(capability, 10)  # type: ignore[assignment]
    for name, kernel in list(vars(kernels.launch).items()):
        if name.endswith("_kernel"):
            setattr(kernels.launch, name, WarmUp(kernel))


def compiled(inputs: AttentionInputs) -> dict[str, Any]:
    """Return a summary of the machine code of each kernel of a call."""
    found = {}
    for name, made in warmed_up(inputs).items():
        kernel = disassemble(made.asm["cubin"])
        found[name] = {
            "shared": made.metadata.shared,
            "stack": kernel.stack,
            "registers": kernel.registers,
            "code": kernel.code.names,
            "loops": [loop.names for loop in kernel.loops],
        }
    return found


def warmed_up(inputs: AttentionInputs) -> dict[str, Any]:
    """Return the compiled kernels of a call by name, including any backward pass."""
    WarmUp.found = {}
    output = kernels.attention(inputs).output
    if output.requires_grad:
        output.backward(torch.ones_like(output))
    return WarmUp.found

"""Compile the kernels of calls for a GPU that is absent, or replace them by ones that do nothing.

A test compiles in a process of its own, by `program`, because Triton then compiles for that GPU
until the process ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

from sparse_attn import Mapping as Mapping  # for `program`
from sparse_attn.kernels import dispatch
from sparse_attn.kernels import triton as kernels
from sparse_attn.kernels.inputs import AttentionInputs

SHARED = {80: 166912, 86: 101376, 90: 232448}  # bytes that one program may use


class NoGpu:
    """Driver for which Triton compiles."""

    def __init__(self, capability: int):
        self.target = GPUTarget("cuda", capability, 32)

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


def program(capability: int, calls: Iterable[str]) -> str:
    """Return Python code of `print_compiled`; a call is the arguments of `AttentionInputs`."""
    made = ", ".join(f"lambda: AttentionInputs({call})" for call in calls)
    return f"from tests.kernels.compiling import *\nprint_compiled({capability}, [{made}])"


def print_compiled(capability: int, calls: Iterable[Callable[[], AttentionInputs]]) -> None:
    """Print, as JSON, the compilation error or the number of compiled kernels of each call."""
    replace_driver(capability)
    found: list[str | int] = []
    for call in calls:
        try:
            made = warmed_up(call())
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
            continue
        most = max(kernel.metadata.shared for kernel in made.values())
        fits = most <= SHARED[capability]
        found.append(len(made) if fits else f"{most} bytes of shared memory")
    json.dump(found, sys.stdout)


def replace_driver(capability: int) -> None:
    """Make Triton compile for an absent GPU."""
    driver.set_active(NoGpu(capability))
    kernels.plan.shared_memory = lambda tensor: SHARED[capability]
    kernels.plan.settings.capability_of = lambda device: divmod(capability, 10)  # type: ignore[assignment]
    for name, kernel in list(vars(kernels.launch).items()):
        if name.endswith("_kernel"):
            setattr(kernels.launch, name, WarmUp(kernel))


def warmed_up(inputs: AttentionInputs) -> dict[str, Any]:
    """Return the compiled kernels of a call by name, including any backward pass."""
    WarmUp.found = {}
    output = kernels.attention(inputs).output
    if output.requires_grad:
        output.backward(torch.ones_like(output))
    return WarmUp.found


@contextmanager
def stubbed() -> Iterator[None]:
    """Choose the Triton kernels on every device, with launches that do nothing."""
    launch = vars(kernels.launch)
    names = [name for name, made in launch.items() if isinstance(made, KernelInterface)]
    with (
        mock.patch.dict(launch, dict.fromkeys(names, Nothing())),
        mock.patch.object(kernels, "INTERPRETED", True),
        mock.patch.dict(dispatch.AUTOMATIC, cpu=("triton", "reference")),
    ):
        yield


class Nothing:
    """A kernel that is launched and does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **options: None

"""Device, versions and memory of a run for its record, and the end of its processes."""

from __future__ import annotations

import os
import platform
import resource
import sys
from importlib import metadata
from typing import Literal

import torch

from sparse_attn.system.paths import own_version


def choose_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Return the device; `auto` is cuda if available.

    Raises:
        ValueError: cuda is not available.
    """
    cuda = torch.cuda.is_available()
    if name == "cuda" and not cuda:
        raise ValueError("device=cuda: torch finds no CUDA device; use --device cpu")
    return torch.device("cuda" if cuda and name != "cpu" else "cpu")


def device_name(device: torch.device) -> str:
    """Name the accelerator, or the processor with its thread count."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def peak_memory_mib(device: torch.device) -> float:
    """Return the peak memory of tensors on the GPU, or of the process on the CPU, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    # in KiB on Linux, in bytes on macOS
    unit = 2**20 if platform.system() == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, of this project and of the packages."""
    return {
        "python": platform.python_version(),
        "sparse-attn": own_version(),
        **{package: metadata.version(package) for package in packages},
    }


def exit_without_teardown() -> None:
    """End one of several finished processes without destroying its process group.

    Gloo's threads release tensors under Python's lock, and the group's destructor waits for these
    threads under the same lock, so the exit sometimes hangs or aborts (torch 2.13).
    """
    from accelerate import PartialState

    if PartialState().num_processes == 1:
        return
    PartialState().wait_for_everyone()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

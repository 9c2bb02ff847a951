"""The machine that a run takes place on, as its record names it, and its processes."""

from __future__ import annotations

import os
import platform
import resource
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch


def choose_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device; `auto` is cuda if available.

    Raises:
        ValueError: cuda is not available.
    """
    cuda = torch.cuda.is_available()
    if name == "cuda" and not cuda:
        raise ValueError("device=cuda: torch finds no CUDA device; use --device cpu")
    return torch.device("cuda" if cuda and name != "cpu" else "cpu")


def device_name(device: torch.device) -> str:
    """The accelerator's name, or the processor's with its thread count."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def peak_memory_mib(device: torch.device) -> float:
    """The most that tensors took on the GPU, or that the process took on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    # in KiB on Linux, in bytes on macOS
    unit = 2**20 if platform.system() == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python, of this project and of the packages."""
    return {
        "python": platform.python_version(),
        "sparse-attn": _own_version(),
        **{package: metadata.version(package) for package in packages},
    }


def _own_version() -> str:
    """The version of this project, which may run from its sources without being installed."""
    try:
        return metadata.version("sparse-attn")
    except metadata.PackageNotFoundError:
        file = Path(__file__).parents[1] / "pyproject.toml"
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return str(project["version"])


def exit_without_teardown() -> None:
    """End one of several processes, whose work is done, without taking its process group apart.

    Gloo's threads let go of tensors under Python's lock, and the group's destructor waits for those
    threads under the same lock: now and then the end hangs, or aborts the process (torch 2.13).
    """
    from accelerate import PartialState

    if PartialState().num_processes == 1:
        return
    PartialState().wait_for_everyone()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

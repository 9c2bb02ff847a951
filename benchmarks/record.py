"""Files of a suite: JSON with the environment, the page and its pictures."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.suite import Case, Suite
from sparse_attn.system.files import write_text

PACKAGES = (
    *("torch", "triton", "transformers"),
    *("entmax", "adasplash", "liger-kernel", "cut-cross-entropy"),
)
COMMIT = "GIT_COMMIT"  # environment variable for a tree without .git
OPTIONS = ("quick", "budget", "rounds", "skip", "only", "case")


class Files:
    """The record of a suite on a device, rewritten after every case."""

    def __init__(
        self, suite: Suite[Any, Any], device: torch.device, options: argparse.Namespace
    ) -> None:
        self.suite = suite
        self.stem = Path(options.out) / f"{suite.name}-{slug(device_name(device))}"
        self.json = self.stem.with_suffix(".json")
        self.record: dict[str, Any] = {
            "environment": environment(device),
            "options": {name: getattr(options, name) for name in OPTIONS},
            "cases": [],
            "left_out": [],
        }
        if (options.keep or suite.keeps) and self.json.exists():
            earlier = json.loads(self.json.read_text())
            for case in earlier["cases"]:
                case.setdefault("environment", earlier["environment"])
            self.record["cases"] = earlier["cases"]

    def holds(self, case: Case) -> bool:
        """Return whether the record has a case of this name."""
        return any(_is(entry, case) for entry in self.record["cases"])

    def add(self, case: Case, found: dict[str, Any], seconds: float) -> None:
        """Add a case, replacing one of the same name."""
        entry: dict[str, Any] = {"group": case.group, "name": case.name, "title": case.title}
        entry |= {"seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 2), **found}
        others = [other for other in self.record["cases"] if not _is(other, case)]
        self.record["cases"] = [*others, entry]
        self.write()

    def write(self) -> None:
        """Write JSON and Markdown atomically."""
        self.stem.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.json, json.dumps(self.record, indent=1) + "\n")
        write_text(self.stem.with_suffix(".md"), self.suite.page(self.record))

    def draw(self) -> None:
        """Write the pictures."""
        for ending, figure in self.suite.pictures(self.record).items():
            figure.savefig(f"{self.stem}{ending}.png", dpi=120)


def _is(entry: dict[str, Any], case: Case) -> bool:
    return (entry["group"], entry["name"]) == (case.group, case.name)


def environment(device: torch.device) -> dict[str, Any]:
    """Return the environment, without anything that identifies the machine."""
    commit = _git("rev-parse", "HEAD") or os.environ.get(COMMIT)
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    return {
        "device": device_name(device),
        "cpu": _cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "commit": commit and commit + (" with changes" if changed else ""),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def device_name(device: torch.device) -> str:
    """Return `CPU`, or the name of the GPU."""
    return "CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)


def slug(name: str) -> str:
    """Return a device name for the end of file names: `NVIDIA H200` becomes `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

"""The record of a run: rows of measurements, where they were made, JSON and Markdown."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import Case
from benchmarks.tables import case_tables
from benchmarks.timing import Measurement, Summary, ratio, summarise
from pipeline.files import write_text

BASE = "SDPA"
PACKAGES = (
    *("torch", "triton", "transformers"),
    *("entmax", "adasplash", "liger-kernel", "cut-cross-entropy"),
)
MEANING = """Times are medians in milliseconds with quartiles. A ratio is the median over rounds of
the time divided by that of SDPA (as PyTorch chooses its backend) in the same round, again with
quartiles: below 1 is faster. `forward` is inference without gradients, `forward+backward` the
output and the gradients to query, key and value. Memory is the peak of the tensors PyTorch
allocates during the call, beyond its inputs: the allocator's high-water mark on the GPU, the sum of
torch.profiler's events on the CPU, where scratch space outside PyTorch's allocator is not seen.
`max error` is of the output, `gradient error` that of the gradients' norm, both for the first two
heads against the float32 reference (not beyond N=2048, nor with dropout). On the GPU attention is
timed by CUDA events with launches hidden, `cold` with the L2 cache overwritten before, `warm` right
after the same call; steps are timed by the wall clock."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row's name, the mapping it computes (of contestants.MAPPINGS), whether it is ours."""

    name: str
    mapping: str
    ours: bool


def rows(
    measured: Mapping[str, Measurement],
    entries: Sequence[Entry],
    which: str,
    cache: str,
    facts: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """One row a contestant, in the order of entries."""
    found = []
    for entry in entries:
        measurement = measured[entry.name]
        row: dict[str, Any] = {**dataclasses.asdict(Entry(entry.name, entry.mapping, entry.ours))}
        row |= {"pass": which, "cache": cache, "reason": measurement.reason}
        if measurement.reason is None:
            row["ms"] = numbers(summarise(measurement.samples.values()))
            if BASE in measured:
                row["to_sdpa"] = numbers(ratio(measurement, measured[BASE]))
            row["to_peers"] = {
                peer.name: numbers(ratio(measurement, measured[peer.name]))
                for peer in _peers(entry, entries)
                if measured[peer.name].reason is None
            }
            row["memory_mib"] = facts[entry.name].get(f"memory {which}")
            row |= {k: v for k, v in facts[entry.name].items() if not k.startswith("memory ")}
        found.append(row)
    return found


def _peers(entry: Entry, entries: Sequence[Entry]) -> list[Entry]:
    """Others' code for the same mapping, and ours as it is written; nobody for a peer."""
    if not entry.ours or entry.name.endswith("[reference]"):
        return []
    same = [e for e in entries if e.mapping == entry.mapping and e != entry]
    return [e for e in same if not e.ours or e.name.endswith("[reference]")]


def numbers(summary: Summary | None) -> dict[str, Any] | None:
    """A summary as it stands in a record."""
    if summary is None:
        return None
    return {k: v if k == "n" else rounded(v) for k, v in dataclasses.asdict(summary).items()}


def rounded(value: float) -> float:
    """To five digits."""
    return float(f"{value:.5g}")


def environment(device: torch.device) -> dict[str, Any]:
    """Where and with what; nothing that names the machine."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    return {
        "device": device_name(device),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "commit": commit and commit + (" with changes" if changed else ""),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def device_name(device: torch.device) -> str:
    """`CPU`, or the GPU's own name."""
    return "CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)


def slug(name: str) -> str:
    """A device name as the stem of file names: `NVIDIA H200` is `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _version(package: str) -> str | None:
    if package == "torch":
        return torch.__version__
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
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


class Report:
    """The files of one device in a folder, written anew after every case."""

    def __init__(self, folder: Path, device: torch.device, options: dict[str, Any]) -> None:
        self.folder = folder
        self.stem = slug(device_name(device))
        self.record: dict[str, Any] = {
            "environment": environment(device),
            "options": options,
            "cases": [],
        }

    def keep(self) -> None:
        """Take over the cases of an earlier run; each says when and with what it was measured."""
        if self.json.exists():
            earlier = json.loads(self.json.read_text())
            for case in earlier["cases"]:
                case.setdefault("environment", earlier["environment"])
            self.record["cases"] = earlier["cases"]

    @property
    def json(self) -> Path:
        """The path of the record."""
        return self.folder / f"{self.stem}.json"

    def add(self, case: Case, found: list[dict[str, Any]], seconds: float) -> None:
        """A measured case, in place of one of the same name; writes JSON and Markdown."""
        entry: dict[str, Any] = {"name": case.name, "group": case.group, "title": case.title}
        entry |= {"batch": case.batch, "length": case.length, "heads": case.heads}
        entry |= {"seconds": round(seconds, 1), "rows": found}
        if hasattr(os, "getloadavg"):
            entry["load"] = round(os.getloadavg()[0], 2)
        others = [c for c in self.record["cases"] if (c["group"], c["name"]) != _key(case)]
        self.record["cases"] = [*others, entry]
        self.write()

    def write(self) -> None:
        """JSON and Markdown; a reader never sees half a file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.json, json.dumps(self.record, indent=1) + "\n")
        write_text(self.folder / f"{self.stem}.md", markdown(self.record))


def _key(case: Case) -> tuple[str, str]:
    return case.group, case.name


def markdown(record: dict[str, Any]) -> str:
    """The whole record as tables."""
    where = record["environment"]
    versions = ", ".join(f"{k} {v}" for k, v in where["versions"].items() if v)
    lines = [
        f"# Benchmarks on {where['device']}",
        "",
        f"{where['cpu']}, {where['threads']} threads; {versions}; {where['started']}, "
        f"commit {where['commit'] or 'unknown'}.",
        "",
        MEANING,
    ]
    for case in record["cases"]:
        lines += ["", *case_tables(case)]
    if record.get("left_out"):
        lines += ["", f"Not reached within the time budget: {', '.join(record['left_out'])}."]
    return "\n".join(lines) + "\n"

"""A benchmark, and its record as JSON and as a page of tables."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.timing import Race, Row
from sparse_attn.reports.table import Table, markdown
from sparse_attn.system.files import make_folder, write_text

PACKAGES = (
    *("torch", "triton", "transformers"),
    *("entmax", "adasplash", "liger-kernel", "cut-cross-entropy"),
)
COMMIT = "GIT_COMMIT"  # environment variable for a tree without .git
OPTIONS = ("quick", "budget", "case", "skip")


@dataclass(frozen=True)
class Case:
    """One table: a name within a group."""

    group: str
    name: str

    @property
    def title(self) -> str:
        """Return the sizes of the case in words."""
        return self.name

    @property
    def base(self) -> str:
        """Return the contestant in the denominator of ratios."""
        return "SDPA"

    @property
    def share(self) -> float:
        """Return the case's share of time, a factor on the seconds of a `Pace`."""
        return 1


class Pace(NamedTuple):
    """Seconds that the contestants of a case share, rounds at least, seconds for a whole run."""

    seconds: float
    least: int
    budget: float


class Benchmark(NamedTuple):
    """Cases that are measured together, in one record and on one page.

    Attributes:
        name: of the files.
        meaning: explanation of the page's numbers.
        columns: headings of facts in the tables, by their name in a row.
        paces: the `Pace` for "cpu", "cuda" and "quick".
        cases: returns the cases for a device, by importance; fewer if the second argument is True.
        contestants: returns everyone who takes part in a case.
        measure: returns the rows of a case.
    """

    name: str
    title: str
    meaning: str
    columns: dict[str, str]
    paces: dict[str, Pace]
    cases: Callable[[str, bool], Sequence[Any]]
    contestants: Callable[[Any, torch.device], Sequence[Any]]
    measure: Callable[[Any, Race[Any]], list[Row]]


class Record:
    """The record of a benchmark on a device, written after every case."""

    def __init__(self, benchmark: Benchmark, device: torch.device, options: argparse.Namespace):
        self.benchmark = benchmark
        self.file = options.out / f"{benchmark.name}-{slug(device_name(device))}.json"
        self.content: dict[str, Any] = {
            "environment": environment(device),
            "options": {name: getattr(options, name) for name in OPTIONS},
            "cases": [],
            "left_out": [],
        }

    def add(self, case: Case, rows: list[Row], seconds: float) -> None:
        """Add a case, and write the record and its page."""
        named = {"group": case.group, "name": case.name, "title": case.title, "base": case.base}
        machine = {"seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 2)}
        self.content["cases"].append({**named, **machine, "rows": rows})
        self.write()

    def write(self) -> None:
        """Write JSON and Markdown atomically."""
        make_folder(self.file.parent)
        write_text(self.file, json.dumps(self.content, indent=1) + "\n")
        write_text(self.file.with_suffix(".md"), page(self.benchmark, self.content))


def page(benchmark: Benchmark, record: dict[str, Any]) -> str:
    """Return a record in Markdown."""
    where = record["environment"]
    versions = ", ".join(f"{name} {v}" for name, v in where["versions"].items() if v)
    lines = [
        f"# {benchmark.title} on {where['device']}",
        "",
        f"{where['cpu']}, {where['threads']} threads; {versions}; {where['started']}, "
        f"commit {where['commit'] or 'unknown'}.",
        "",
        benchmark.meaning,
    ]
    for case in record["cases"]:
        lines += ["", f"## {case['group']}: {case['name']}", "", f"{case['title']}."]
        measured = [row for row in case["rows"] if row["reason"] is None]
        if measured:
            lines += _times(measured, case["base"], benchmark.columns)
            lines += _peers(measured, case["base"])
        lines += _reasons(case["rows"])
    if record["left_out"]:
        lines += ["", f"Not reached within the time budget: {', '.join(record['left_out'])}."]
    return "\n".join(lines) + "\n"


def _times(rows: list[Row], base: str, columns: dict[str, str]) -> list[str]:
    """Tabulate the times of each contestant, over those of the base, and the facts of a row."""
    by = {(row["name"], row["pass"]): row for row in rows}
    headings = ["contestant"]
    shown: dict[str, list[str]] = {}  # facts by pass
    for which in dict.fromkeys(row["pass"] for row in rows):
        known = {key for row in rows if row["pass"] == which for key in row}
        shown[which] = [key for key in columns if key in known]
        headings += [f"{which}, ms", f"/ {base}", *(columns[key] for key in shown[which])]
    lines = []
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = [name]
        for which, keys in shown.items():
            row = by.get((name, which), {})
            cells += [spread(row.get("ms")), spread(row.get("to", {}).get(base))]
            cells += [short(row.get(key)) for key in keys]
        lines.append(cells)
    return _table(headings, lines)


def _peers(rows: list[Row], base: str) -> list[str]:
    """Tabulate ratios of ours to peers of the same mapping; the base is in the table of times."""
    lines = [
        [row["name"], peer, row["pass"], spread(ratio)]
        for row in rows
        for peer, ratio in row["to"].items()
        if ratio and peer != base
    ]
    return _table(["ours", "peer", "pass", "ours / peer"], lines) if lines else []


def _table(headings: list[str], lines: list[list[str]]) -> list[str]:
    return ["", *markdown(Table("", headings, lines))[:-1]]


def _reasons(rows: Iterable[Row]) -> list[str]:
    """List who was not measured; each reason once, with its passes."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["reason"] is not None:
            found.setdefault((row["name"], row["reason"]), []).append(row["pass"])
    said = [f"- {name} ({', '.join(passes)}): {why}" for (name, why), passes in found.items()]
    return ["", "Not measured:", "", *said] if said else []


def spread(summary: dict[str, Any] | None) -> str:
    """Return the median (lower quartile-upper quartile), empty for None."""
    if summary is None:
        return ""
    return f"{short(summary['median'])} ({short(summary['q1'])}-{short(summary['q3'])})"


def short(value: float | None) -> str:
    """Return three significant digits, or all integer digits; empty for None."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def environment(device: torch.device) -> dict[str, Any]:
    """Return the environment, without anything that identifies the machine."""
    commit = _git("rev-parse", "HEAD") or os.environ.get(COMMIT)
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    gpu = device.type == "cuda"
    return {
        "device": device_name(device),
        "capability": torch.cuda.get_device_capability(device) if gpu else None,
        "cpu": _cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "cuda": torch.version.cuda if gpu else None,
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

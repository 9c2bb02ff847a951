"""Time of sparse and dense products of a tile by its share of nonzero weights."""

from __future__ import annotations

import argparse
import ctypes
import functools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
from matplotlib.figure import Figure

from benchmarks import plots, sparsity
from benchmarks.race import Contestant, Race
from benchmarks.sparsity import PASSES, SOFTMAX
from benchmarks.suite import Pace, Record, Suite
from benchmarks.tables import spread, table
from benchmarks.timing import Task, processor_clock, threads
from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.kernels.cpu import build

SPARSE, DENSE = "sparse", "dense"
RATIO = f"{SPARSE} / {DENSE}"
MOST = {SPARSE: 1.0, DENSE: 0.0}  # tiles with at most this share of nonzero weights are sparse
ZEROS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


@dataclass(frozen=True)
class Products(Contestant):
    """A mapping, computed with one kind of products."""

    weights: Mapping
    kind: str


class Crossover(Suite[sparsity.SparsityCase, Products]):
    name = "crossover"
    title = "Where zeros begin to pay"
    meaning = f"""\
r-softmax attention with a share r of zeros, `{SPARSE}` by kernels that compute the products of
every tile over its nonzero weights alone, `{DENSE}` by kernels that do so in none. Times are
divided by those of our softmax kernel in the same round, and `{RATIO}` is below 1 where
zeros pay: medians over interleaved rounds, with quartiles. Processor time of one thread, random
scores of standard deviation {sparsity.SPREAD:g}, float32."""
    base = SOFTMAX
    paces: ClassVar = {"cpu": Pace(8, 5, 300), "quick": Pace(0.5, 3, 60)}

    def cases(self, device: str, options: argparse.Namespace) -> list[sparsity.SparsityCase]:
        sizes = ((4, 12, 128), (1, 8, 512), (1, 1, 2048))
        return [
            sparsity.SparsityCase("crossover", f"N={length}", batch, length, heads)
            for batch, heads, length in sizes[: 1 if options.quick else None]
        ]

    def contestants(self, case: sparsity.SparsityCase, device: torch.device) -> list[Products]:
        return [
            Products(SOFTMAX, SOFTMAX, True, Mapping(SOFTMAX), DENSE),
            *(
                # the dense form is the peer
                Products(f"{kind} {r}", f"r={r}", kind == SPARSE, Mapping("r-softmax", r=r), kind)
                for r in ZEROS
                for kind in MOST
            ),
        ]

    def measure(self, case: sparsity.SparsityCase, race: Race[Products]) -> dict[str, Any]:
        data = case.problem()
        rows = []
        with forced_kinds() as use, threads(1):

            def task(contestant: Products) -> Task:
                run = data.call(functools.partial(attention, mapping=contestant.weights))
                return Task(run, functools.partial(use, contestant.kind))

            for which in PASSES:
                with torch.set_grad_enabled(which == PASSES[1]):
                    rows += race.rows(task, which, clock=processor_clock, memory=False)
        return {"batch": case.batch, "length": case.length, "heads": case.heads, "rows": rows}

    def section(self, case: dict[str, Any]) -> list[str]:
        by = {(row["name"], row["pass"]): row.get("to", {}) for row in case["rows"]}
        headings = ["zeros", *(f"{p}, {x}" for p in PASSES for x in (SPARSE, DENSE, RATIO))]
        lines = [
            [
                f"{r:.0%}",
                *(
                    spread(by[f"{kind} {r}", which].get(to))
                    for which in PASSES
                    for kind, to in ((SPARSE, SOFTMAX), (DENSE, SOFTMAX), (SPARSE, f"{DENSE} {r}"))
                ),
            ]
            for r in ZEROS
        ]
        return [f"## {case['name']}", "", f"{case['title']}.", "", *table(headings, lines)]

    def pictures(self, record: Record) -> dict[str, Figure]:
        """Plot the time of sparse over dense products against the share of nonzero weights."""
        figure = Figure((9, 4), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, which in zip(axes, PASSES, strict=True):
            for case in record["cases"]:
                to = {
                    row["mapping"]: row["to"]
                    for row in case["rows"]
                    if row["pass"] == which and row["ours"]
                }
                points = [(1 - r, to[f"r={r}"][f"{DENSE} {r}"]["median"]) for r in ZEROS]
                plots.draw(axis, points, {"marker": "."}, case["name"])
            axis.axhline(1, color="black", linewidth=0.6)
            axis.set(xlabel="share of weights above 0", title=which)
            axis.grid(alpha=0.3)
        axes[0].set_ylim(0)
        axes[0].set_ylabel(RATIO)
        axes[1].legend()
        return {"": figure}


@contextmanager
def forced_kinds() -> Iterator[Callable[[str], None]]:
    """Yield a function that switches to the kernels of a kind, sparse or dense."""
    with mock.patch.object(build, "_result"):
        libraries = {kind: _compiled(most) for kind, most in MOST.items()}
        yield lambda kind: setattr(build, "_result", libraries[kind])


def _compiled(most: float) -> ctypes.CDLL:
    """Compile the kernels with this value of MOST in floors.h, and no limit in entries."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(build.SOURCE, folder, dirs_exist_ok=True)
        header = Path(folder, "floors.h")
        text = header.read_text()
        for name, value in (("MOST", most), ("MOST_ENTRIES", 1e9)):
            text, found = re.subn(rf"(?<= {name} = )[\d.]+(?=;)", str(value), text)
            assert found == 1, f"floors.h defines {name} no more"
        header.write_text(text)
        # without the flag, all libraries of a process share the statics of the first
        flags = (*build.FLAGS, "-fno-gnu-unique")
        with mock.patch.multiple(build, SOURCE=Path(folder), FLAGS=flags, _result=None):
            library = build.library()
    if isinstance(library, str):
        raise RuntimeError(library)
    return library

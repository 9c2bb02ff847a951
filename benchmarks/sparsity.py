"""Time of mappings with exact zeros relative to our softmax kernel, and their share of zeros."""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from benchmarks import plots
from benchmarks.attention import cases, peers
from benchmarks.attention.cases import Problem
from benchmarks.attention.contestants import share_of_zeros
from benchmarks.command import MINILM, SUITES
from benchmarks.race import Contestant, Race, Row
from benchmarks.suite import Pace, Record, Suite
from benchmarks.tables import measured, reasons, spread, table
from benchmarks.timing import Task, processor_clock, threads, wall_clock
from sparse_attn.hf.opening import resolve_model
from sparse_attn.inspection.plot_style import styles
from sparse_attn.kernels import attention
from sparse_attn.mappings.syntax import parse_mappings

SOFTMAX, SDPA = "softmax", "SDPA"
MAPPINGS = parse_mappings(
    "softmax,sparsemax,entmax:alpha=1.5,t-softmax:t=1,r-softmax:r=0.9,r-softmax:r=0.15,"
    "top-p-softmax:p=0.5,threshold-softmax:lam=0.01,max-gap:a=64",
    "MAPPINGS",
)
SPREAD = 2.0  # standard deviation of random scores
TEXT = Path(__file__).parents[1] / "configs" / "glue" / "demo" / "questions.txt"
POSITIONS = 512  # maximum of MiniLM
PASSES = ("forward", "forward+backward")
CLOCKS = {1: processor_clock, 2: wall_clock}  # by number of threads
COLUMNS = {f"{which}, {n} thread{'s' * (n > 1)}": (which, n) for n in CLOCKS for which in PASSES}
TRAINING = "forward+backward, 1 thread"


@dataclass(frozen=True)
class SparsityCase(cases.AttentionCase):
    """A case of random scores; in the group `minilm`, scores of its layers as the batch."""

    def problem(self) -> Problem:
        data = cases.problem(self, torch.device("cpu"))
        if self.group != "minilm":
            return replace(data, query=SPREAD * data.query)
        query, key, value = recorded(self.length)[:, :, : self.heads].contiguous()
        return replace(data, query=query, key=key, value=value)


class Sparsity(Suite[SparsityCase, Contestant]):
    name = "sparsity"
    title = "Zeros and time"
    meaning = f"""\
Time of an attention call divided by that of our own softmax kernel in the same round: the median
over interleaved rounds, with quartiles; below 1 is faster. `forward` is inference without
gradients, `forward+backward` the output and the gradients to query, key and value, float32. With
one thread it is processor time, with two the time on the wall. `zeros` is the share of weights that
are exactly 0. `SDPA` is PyTorch's, as it chooses its backend.

Random queries and keys are normal, scaled so that scores have standard deviation {SPREAD:g}.
MiniLM's are those of all of its layers (the batch) and of its first heads, recorded from the plain
model as it reads the texts of the demo in pieces of {POSITIONS} tokens, all that its
positions allow: longer rows are several pieces side by side, where every query meets the keys of
all."""
    base = SOFTMAX
    paces: ClassVar = {"cpu": Pace(6, 5, 480), "quick": Pace(1, 3, 60)}

    def cases(self, device: str, options: argparse.Namespace) -> list[SparsityCase]:
        if options.quick:
            return [SparsityCase("random", "N=512", 1, 512, heads=2)]
        return [
            SparsityCase("random", "N=128", 8, 128),
            SparsityCase("random", "N=512", 2, 512),
            SparsityCase("random", "N=2048", 1, 2048, heads=4),
            SparsityCase("random", "N=8192", 1, 8192, heads=1),
            SparsityCase("random", "causal N=2048", 1, 2048, 8, causal=True, key_heads=2),
            SparsityCase("random", "causal N=8192", 1, 8192, 2, causal=True, key_heads=1),
            SparsityCase("minilm", "N=512", 6, 512, 12, 32),
            SparsityCase("minilm", "N=2048", 6, 2048, 2, 32),
        ]

    def contestants(self, case: SparsityCase, device: torch.device) -> list[Contestant]:
        return [
            *(Contestant(label, mapping.name, True) for label, mapping in MAPPINGS.items()),
            Contestant(SDPA, SOFTMAX, False),
        ]

    def measure(self, case: SparsityCase, race: Race[Contestant]) -> dict[str, Any]:
        data = case.problem()
        forwards: dict[str, peers.Forward] = {SDPA: peers.sdpa(data, None)}
        zeros = {SDPA: 0.0}
        for contestant in race.contestants:
            if contestant.name != SDPA:
                mapping = MAPPINGS[contestant.name]
                forwards[contestant.name] = functools.partial(
                    attention, mapping=mapping, causal=case.causal
                )
                zeros[contestant.name] = share_of_zeros(data, mapping)

        def task(contestant: Contestant) -> Task:
            facts = {"zeros": zeros[contestant.name]}
            return Task(data.call(forwards[contestant.name]), facts=facts)

        rows = list[Row]()
        for column, (which, number) in COLUMNS.items():
            with torch.set_grad_enabled(which == PASSES[1]), threads(number):
                rows += race.rows(task, column, clock=CLOCKS[number], memory=False)
        sizes = {"batch": case.batch, "length": case.length, "heads": case.heads}
        return {**sizes, "head_dim": case.head_dim, "rows": rows}

    def section(self, case: dict[str, Any]) -> list[str]:
        by = {(row["name"], row["pass"]): row for row in case["rows"] if row["reason"] is None}
        lines = []
        for name in dict.fromkeys(name for name, _ in by):
            found = [by.get((name, column), {}) for column in COLUMNS]
            zeros = next(row["zeros"] for row in found if row)
            ratios = [spread(row.get("to", {}).get(SOFTMAX)) for row in found]
            lines.append([name, f"{100 * zeros:.4g}%", *ratios, spread(found[1].get("ms"))])
        about = f"{case['title']} ({SUITES[self.name].groups[case['group']]})."
        headings = ["mapping", "zeros", *COLUMNS, f"{TRAINING}, ms"]
        head = [f"## {case['group']}: {case['name']}", "", about, *measured(case), ""]
        return [*head, *table(headings, lines), *reasons(case["rows"])]

    def pictures(self, record: Record) -> dict[str, Figure]:
        """Plot time relative to softmax against the share of weights that are not 0, by mapping."""
        figure = Figure((10, 4.6), layout="constrained")
        groups = SUITES[self.name].groups
        axes = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
        looks = dict(zip(MAPPINGS, styles(list(MAPPINGS)), strict=True))
        for axis, group in zip(axes, groups, strict=True):
            points: dict[str, list[tuple[float, float]]] = {}
            for row in (r for c in record["cases"] if c["group"] == group for r in c["rows"]):
                if row["pass"] == TRAINING and row["name"] in MAPPINGS and row["reason"] is None:
                    place = (1 - row["zeros"], row["to"][SOFTMAX]["median"])
                    points.setdefault(row["name"], []).append(place)
            for name, found in points.items():
                plots.draw(axis, sorted(found), looks[name], name)
            axis.set(xscale="log", xlabel="share of weights above 0", title=group)
            axis.grid(alpha=0.3)
        axes[0].set_ylim(0)
        axes[0].set_ylabel(f"time / softmax, {TRAINING}")
        handles = {h.get_label(): h for axis in axes for h in axis.get_lines()}
        figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8)
        return {"": figure}


def recorded(length: int) -> Tensor:
    """Return query, key and value of MiniLM's layers, (3, layers, heads, length, d)."""
    folder = resolve_model(MINILM)
    ids = AutoTokenizer.from_pretrained(folder)(
        TEXT.read_text(),
        truncation=True,
        max_length=min(length, POSITIONS),
        return_overflowing_tokens=True,
    )["input_ids"]
    model = AutoModel.from_pretrained(folder)
    seen: dict[str, list[Tensor]] = {name: [] for name in ("query", "key", "value")}
    for layer in model.encoder.layer:
        for name, found in seen.items():
            module = getattr(layer.attention.self, name)
            module.register_forward_hook(lambda _, __, out, found=found: found.append(out))
    with torch.no_grad():
        model(torch.tensor(ids[: max(1, length // POSITIONS)]))
    states = torch.stack([torch.stack(found) for found in seen.values()]).flatten(2, 3)
    return states.unflatten(-1, (model.config.num_attention_heads, -1)).transpose(2, 3)

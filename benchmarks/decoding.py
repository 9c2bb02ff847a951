"""Attention of few queries, called like in a patched model: one token with a cache, short texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from benchmarks.attention import cases, peers
from benchmarks.attention.cases import Problem
from benchmarks.attention.contestants import share_of_zeros
from benchmarks.race import Contestant, Race, Row
from benchmarks.sparsity import PASSES, SPREAD
from benchmarks.suite import Pace, Suite
from benchmarks.tables import Column
from benchmarks.timing import Task, processor_clock, rounded, threads, wall_clock
from sparse_attn.hf.attention import NAME, sparse_attention
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.syntax import parse_mappings

SDPA, INTEGRATION = "SDPA", "Transformers' SDPA"
MAPPINGS = parse_mappings("softmax,sparsemax,entmax:alpha=1.5", "MAPPINGS")


@dataclass(frozen=True)
class DecodingCase(cases.AttentionCase):
    """A case of which each layer has its own keys and values."""

    queries: int | None = 1
    layers: int = 1

    @property
    def title(self) -> str:
        shape = f"H={self.heads}, d={self.head_dim}, {self.queries} x {self.length}"
        return f"{self.layers} calls, {shape} scores"

    def problems(self) -> list[Problem]:
        data = cases.problem(self, torch.device("cpu"))
        data = replace(data, query=SPREAD * data.query)
        return [
            replace(data, key=data.key.clone(), value=data.value.clone())
            for _ in range(self.layers)
        ]


class Decoding(Suite[DecodingCase, Contestant]):
    name = "decoding"
    title = "Few queries"
    meaning = f"""\
Milliseconds of all calls, medians with quartiles; a ratio is the median over interleaved rounds of
the time divided by that of `{SDPA}`, PyTorch's function, in the same round. `ours` is the function
that patch_model installs, called as a model calls it, and `{INTEGRATION}` the one it stands for.
In `decoding` every call has keys and values of its own, as the layers of a model do, and all
threads compute; `small` is processor time of one. float32, random scores of standard deviation
{SPREAD:g}; `p > 0` is the share of weights that are not 0."""
    base = SDPA
    columns = (Column("nonzeros", "p > 0"),)
    paces: ClassVar = {"cpu": Pace(8, 5, 240), "quick": Pace(0.5, 3, 60)}

    def cases(self, device: str, options: argparse.Namespace) -> list[DecodingCase]:
        small = DecodingCase("small", "16 tokens", 1, 16, queries=16, layers=100)
        if options.quick:
            return [DecodingCase("decoding", "1,024 keys", 1, 1024, layers=2), small]
        return [
            DecodingCase("decoding", "16,384 keys", 1, 16384, layers=8),
            DecodingCase("decoding", "65,536 keys", 1, 65536, layers=2),
            small,
        ]

    def contestants(self, case: DecodingCase, device: torch.device) -> list[Contestant]:
        return [
            Contestant(SDPA, "softmax", False),
            Contestant(INTEGRATION, "softmax", False),
            *(
                Contestant(f"ours {label}", mapping.name, True)
                for label, mapping in MAPPINGS.items()
            ),
        ]

    def measure(self, case: DecodingCase, race: Race[Contestant]) -> dict[str, Any]:
        problems = case.problems()
        forwards = {
            SDPA: peers.sdpa(problems[0], None),
            INTEGRATION: called(sdpa_attention_forward),
        }
        facts: dict[str, dict[str, float]] = {}
        for label, mapping in MAPPINGS.items():
            forwards[f"ours {label}"] = called(sparse_attention, mapping)
            facts[f"ours {label}"] = {"nonzeros": rounded(1 - share_of_zeros(problems[0], mapping))}

        def task(contestant: Contestant) -> Task:
            calls = [problem.call(forwards[contestant.name]) for problem in problems]
            return Task(lambda: [call() for call in calls], facts=facts.get(contestant.name, {}))

        rows = list[Row]()
        small = case.group == "small"
        clock = processor_clock if small else wall_clock
        for which in PASSES[: 1 + small]:
            with (
                torch.set_grad_enabled(which == PASSES[1]),
                threads(1 if small else torch.get_num_threads()),
            ):
                rows += race.rows(task, which, clock=clock, memory=False)
        sizes = {"queries": case.queries, "length": case.length, "calls": case.layers}
        return {**sizes, "rows": rows}


class Layer(nn.Module):
    """Stand-in for an attention module, with a mapping set as by patch_model."""

    is_causal = False


def called(
    function: Callable[..., tuple[Tensor, Tensor | None]], mapping: Mapping | None = None
) -> peers.Forward:
    """Wrap an attention function of Transformers; the output has SDPA's shape (B, H, Q, D)."""
    module = Layer().eval()
    setattr(module, NAME, mapping)
    return lambda q, k, v: function(module, q, k, v, None, scaling=q.shape[-1] ** -0.5)[
        0
    ].transpose(1, 2)

"""Overhead of `record_attention` on forward passes of MiniLM."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoModel

from benchmarks.command import MINILM
from benchmarks.race import Contestant, Race
from benchmarks.suite import Case, Pace, Record, Suite
from benchmarks.tables import cell, table
from benchmarks.timing import Task
from sparse_attn import patch_model
from sparse_attn.hf.opening import resolve_model
from sparse_attn.inspection import record_attention

PLAIN = "unpatched"
MAPPINGS = (PLAIN, "softmax", "r-softmax", "sparsemax", "entmax")
SHAPES = ((1, 16), (8, 128), (2, 512))  # sentences, tokens
QUICK = ((1, 16), (2, 32))
FORWARD, STATISTICS, WEIGHTS = "forward", "statistics", "weights too"


@dataclass(frozen=True)
class Recorded(Case):
    mapping: str
    sentences: int
    tokens: int


class Recording(Suite[Recorded, Contestant]):
    name = "recording"
    title = "Recording attention"
    meaning = """Milliseconds of a forward pass of MiniLM (6 layers, 12 heads, float32, without
gradients), and the time within `record_attention` divided by it: the median, with quartiles, over
rounds in which all run. Half of the sentences are padding from their middle on. `statistics`:
zeros, support, entropy and mass on special tokens are counted. `weights too`: with weights=True.
`unpatched` runs PyTorch's SDPA, and the library's softmax while it is recorded."""
    base = FORWARD
    paces: ClassVar = {"cpu": Pace(2, 5), "cuda": Pace(2, 5), "quick": Pace(0.5, 3)}

    def cases(self, device: str, options: argparse.Namespace) -> list[Recorded]:
        return [
            Recorded("recording", f"{mapping}, {sentences} x {tokens}", mapping, sentences, tokens)
            for sentences, tokens in (QUICK if options.quick else SHAPES)
            for mapping in MAPPINGS
        ]

    def contestants(self, case: Recorded, device: torch.device) -> list[Contestant]:
        return [Contestant(name, case.mapping, True) for name in (FORWARD, STATISTICS, WEIGHTS)]

    @torch.no_grad()
    def measure(self, case: Recorded, race: Race[Contestant]) -> dict[str, Any]:
        model = AutoModel.from_pretrained(resolve_model(MINILM)).to(race.device).eval()
        if case.mapping != PLAIN:
            patch_model(model, case.mapping)
        batch = inputs(case.sentences, case.tokens, race.device)
        with ExitStack() as recording:

            def record(weights: bool) -> None:
                recording.close()
                recording.enter_context(
                    record_attention(model, special_ids=(101, 102), weights=weights)
                )

            prepared = {
                FORWARD: recording.close,
                STATISTICS: lambda: record(weights=False),
                WEIGHTS: lambda: record(weights=True),
            }
            rows = race.rows(lambda c: Task(lambda: model(**batch), prepared[c.name]), memory=False)
        sizes = {"mapping": case.mapping, "sentences": case.sentences, "tokens": case.tokens}
        return {**sizes, "rows": rows}

    def sections(self, record: Record) -> list[str]:
        headings = ["mapping", "sentences x tokens", f"{FORWARD}, ms", STATISTICS, WEIGHTS]
        cells = [
            [
                case["mapping"],
                f"{case['sentences']} x {case['tokens']}",
                cell(case, FORWARD, "ms"),
                *(cell(case, name, "to", FORWARD) for name in (STATISTICS, WEIGHTS)),
            ]
            for case in record["cases"]
        ]
        return table(headings, cells)


def inputs(sentences: int, tokens: int, device: torch.device) -> dict[str, Tensor]:
    """Return random token ids, with every second sentence padded from its middle on."""
    torch.manual_seed(0)
    mask = torch.ones(sentences, tokens, dtype=torch.long)
    mask[1::2, tokens // 2 :] = 0
    ids = torch.randint(1000, 30000, (sentences, tokens))
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}

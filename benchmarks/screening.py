"""Time of screening the keys of long rows by int8 products beside the float product of all keys."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.llm import opened, tokens
from benchmarks.table import Benchmark, Case, Pace
from benchmarks.timing import Contestant, Race, Row, Task, rounded
from sparse_attn.kernels.cpu import build

MULTIPLY, WITH_SCORES = "multiply", ", with scores"
HEAD, LAYERS = 4, (0, 5, 12, 20, 29)
QUERIES, KEYS = 504, 8192
GAPS = {"sparsemax": 1.0, "entmax": 2.0, "max-gap": math.log(KEYS)}


MEANING = f"""\
CPU milliseconds of one thread for the last {QUERIES} queries of a head of SmolLM2-135M-Instruct and
all {KEYS:,} keys, none masked, medians with quartiles; a ratio is the median over interleaved
rounds of the time divided by that of `{MULTIPLY}`, the float product. The text is Python's
reference (pydoc_data), the head number {HEAD}. `screening` lists, by int8 products, the keys whose
score can be within a gap from the largest: 1 for sparsemax, 2 for entmax 1.5, log {KEYS:,} for
max-gap a=1; `with scores` also computes their scores. Keys are packed and rounded before. `listed`
is the share of keys that are listed, `within` that of keys truly within the gap."""


class Layer(Case):
    """The rows of a layer, or few random rows for a quick look."""

    @property
    def base(self) -> str:
        return MULTIPLY


def cases(device: str, quick: bool) -> list[Layer]:
    """Return the layers of the model, or random rows."""
    if quick:
        return [Layer("random", "26 queries, 1,024 keys")]
    return [Layer("SmolLM2", f"layer {number}") for number in LAYERS]


def contestants(case: Layer, device: torch.device) -> list[Contestant]:
    """Return the float product, and screening for each gap without and with scores."""
    ours = [
        Contestant(f"screening, gap {gap:.3g}{more}", mapping, True)
        for mapping, gap in GAPS.items()
        for more in ("", WITH_SCORES)
    ]
    return [Contestant(MULTIPLY, MULTIPLY, False), *ours]


def measure(case: Layer, race: Race[Contestant]) -> list[Row]:
    """Return the rows of a case."""
    return race.rows(partial(task, case, race.device), "forward", thread_time, memory=False)


def thread_time(call: Callable[[], object]) -> float:
    """Return the milliseconds of this thread, because a call is shorter than a turn of others."""
    begun = time.thread_time()
    call()
    return 1e3 * (time.thread_time() - begun)


def task(case: Layer, device: torch.device, contestant: Contestant) -> Task:
    """Return a task, with its shares of keys in percent."""
    if device.type != "cpu":
        raise NotImplementedError("only on a CPU: --device cpu")
    library, (query, key) = compiled(), inputs(case)
    start, other = (ctypes.c_void_p(rows.data_ptr()) for rows in (query, key))
    screens = library.load_rows(start, len(query), other, *key.shape)
    if contestant.name == MULTIPLY:
        return Task(library.multiply_tiles)
    if not screens:
        raise NotImplementedError("the processor has no int8 products (AVX-512 VNNI)")
    gap = GAPS[contestant.mapping]
    screen = partial(library.screen_tiles, ctypes.c_float(gap))
    scores = query.double() @ key.double().T
    within = (scores >= scores.amax(1, keepdim=True) - gap).double().mean().item()
    facts = {
        "listed": rounded(100 * screen(False) / scores.numel()),
        "within": rounded(100 * within),
    }
    return Task(partial(screen, contestant.name.endswith(WITH_SCORES)), facts=facts)


@cache
def compiled() -> Any:
    """Compile screening.cpp as the kernels are compiled, and load it."""
    source, made = Path(__file__).with_suffix(".cpp"), f"{build._temporary_folder().name}/keys.so"
    flags = [f"-I{build.SOURCE}", *build.flags_for(torch.backends.cpu.get_cpu_capability())]
    build._run([*build._compiler(), str(source), *flags, "-o", made])
    return ctypes.CDLL(made)


@cache
def inputs(case: Layer) -> tuple[Tensor, Tensor]:
    """Return scaled queries, and keys."""
    if case.group == "SmolLM2":
        query, key = caught()[case.name]
        return query / 8, key
    torch.manual_seed(0)
    return torch.randn(26, 64) / 8, torch.randn(1024, 64)


@cache
@torch.inference_mode()
def caught() -> dict[str, tuple[Tensor, Tensor]]:
    """Return the queries and keys of each layer, from one pass over the text."""
    model, tokenizer = opened("cpu")
    attend = F.scaled_dot_product_attention
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def catch(query: Tensor, key: Tensor, *rest: Any, **options: Any) -> Tensor:
        key_head = HEAD * key.shape[1] // query.shape[1]
        rows = query[0, HEAD, -QUERIES:].clone(), key[0, key_head].clone()
        found[f"layer {len(found)}"] = rows
        return attend(query, key, *rest, **options)

    with mock.patch.object(F, "scaled_dot_product_attention", catch):
        model(tokens(KEYS, tokenizer), use_cache=False)
    return found


BENCHMARK = Benchmark(
    "screening",
    "Screening of keys",
    MEANING,
    {"listed": "listed, %", "within": "within, %"},
    {"cpu": Pace(10, 20, 900), "cuda": Pace(0, 1, 60), "quick": Pace(0.5, 5, 60)},
    cases,
    contestants,
    measure,
)

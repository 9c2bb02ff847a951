"""Predicts the time of the Triton kernels from their instructions: the page docs/gpu-model.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import budget
from benchmarks.machine.simulated import Search, entmax_search, quantile_search

PAGE = budget.ROOT / "docs/gpu-model.md"
SIDE, DIM = 64, 64
SMS = 132  # SMs
PEAK, BANDWIDTH = 989e12, 4.8e12  # FLOP/s and bytes/s, NVIDIA's H200 data sheet
FLOPS = 4096  # of a dense bfloat16 product, per cycle and SM: PEAK at CLOCK
CLOCK = PEAK / FLOPS / SMS
IPC = 0.7  # of the one instruction per cycle that each of 4 schedulers can issue: assumed
SPECIAL = 16  # results per cycle and SM, CUDA C++ Programming Guide, compute capability 9.0
CANDIDATES = 196  # instructions of a Newton step over one tile's maxima
SDPA = {True: 215e12, False: 294e12}  # FLOP/s forward + backward, at most 512 keys and beyond
# instructions of AdaSplash-2's passes with Triton 3.6: over all tiles, live ones forward, backward
PEER = ((91, 401, 267, 338), (385,), (363, 447))
LENGTHS = (128, 512, 4096, 16384, 65536)
AIMS = {"r-softmax": 1.4, "sparsemax": 1.25, "entmax-1.5": 1.25, "sigsoftmax": 1.05}


class Bounds(NamedTuple):
    """If products overlap with everything else, and if with nothing."""

    low: float
    high: float

    def __add__(self, other: Bounds) -> Bounds:  # type: ignore[override]
        return Bounds(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Bounds:
        return Bounds(self.low * factor, self.high * factor)


NONE = Bounds(0.0, 0.0)


def cycles(instructions: float, special: float = 0, products: int = 0) -> Bounds:
    """Of an SM, for one tile: its four warps, one to a scheduler."""
    tensor = products * 2 * SIDE * SIDE * DIM / FLOPS
    other = max(instructions / IPC, special * 4 * 32 / SPECIAL)
    return Bounds(max(other, tensor), other + tensor)


@cache
def search_of(mapping: str, length: int) -> Search:
    """What a block of rows of a mapping searches among Gaussian scores."""
    if mapping == "r-softmax":
        return quantile_search(length)
    if mapping in ("sparsemax", "entmax-1.5"):
        return entmax_search(length, 2.0 if mapping == "sparsemax" else 1.5)
    return Search({}, 0, 1.0)


def seconds(mapping: str, length: int) -> Bounds:
    """One head, forward and backward, causal beyond 512 keys."""
    counts = budget.read(budget.pinned())
    spent = _on_chip(counts, mapping) if length == 128 else _tiled(counts, mapping, length)
    rows = 12 + 3 * _has_second(mapping)  # written once and read once or twice
    least = rows * length * DIM * 2 / BANDWIDTH
    low, high = spent.times(1 / SMS / CLOCK)
    return Bounds(max(low, least), max(high, least))


def _on_chip(counts: budget.Counts, mapping: str) -> Bounds:
    """128 queries and keys: two blocks of queries forward, one with two tiles of keys backward."""
    search = search_of(mapping, 128)
    forward, backward = (
        counts[f"9.0 | {mapping} | 128 | {name}"] for name in ("forward", "queries")
    )
    steps = {"threshold": search.candidates, **search.passes}
    again = sum((steps[name] - 1) * count[0] for name, count in forward.items() if name in steps)
    there = cycles(
        forward["kernel"][0] + again, forward["kernel"][1], 2 * (2 + _has_second(mapping))
    )
    instructions, special, _ = map(sum, zip(backward["kernel"], backward["queries"], strict=True))
    # twice the warps, and so twice the cycles
    back = cycles(2 * instructions, 2 * special, 4 * 5)
    return there.times(2) + back


def _tiled(counts: budget.Counts, mapping: str, length: int) -> Bounds:
    search, blocks, causal = search_of(mapping, length), length // SIDE, length > 512
    inner = blocks * (blocks - 1) / 2 if causal else blocks**2
    spent = cycles(search.candidates * CANDIDATES).times(blocks)
    for kernel in budget.KERNELS.values():
        passes = counts[f"9.0 | {mapping} | 16384, causal | {kernel}"]
        rest = 2 * passes["kernel"][0] - sum(count[0] for count in passes.values())
        spent += cycles(rest).times(blocks)
        for name, (instructions, special, _) in passes.items():
            plain = name.removesuffix(", edges")
            if name == "kernel" or (name != plain and not causal):
                continue
            tiles = blocks if name != plain else inner
            if name == plain and plain not in ("survey", "listing"):
                tiles *= search.live
            products = {"output": 2 + _has_second(mapping), "queries": 3, "keys": 4}.get(plain, 1)
            rounds = search.passes.get(plain, 1.0)
            spent += cycles(instructions, special, products).times(rounds * tiles)
    return spent


def _has_second(mapping: str) -> int:
    return int(mapping not in ("softmax", "sigsoftmax"))


def peer_seconds(length: int) -> Bounds:
    """As `seconds`, of AdaSplash-2."""
    blocks, live = length // SIDE, search_of("entmax-1.5", length).live
    every, output, backward = PEER
    spent = sum((cycles(count, products=1) for count in every), NONE)
    passes = zip((*output, *backward), (3, 3, 4), strict=True)
    spent += sum((cycles(count, products=n) for count, n in passes), NONE).times(live)
    return spent.times(blocks * (blocks + 1) / 2 / SMS / CLOCK)


def sdpa_seconds(length: int) -> float:
    work = 14 * length**2 * DIM / (2 if length > 512 else 1)
    return max(work / SDPA[length <= 512], 12 * length * DIM * 2 / BANDWIDTH)


def _judged(ratio: Bounds, aim: float, length: int) -> str:
    word = "met" if ratio.high <= aim else "missed" if ratio.low > aim else "open"
    return f"{word} at N={length}"


def page() -> str:
    counts = budget.read(budget.pinned())
    passes = {
        name: count[0]
        for kernel in ("forward", "queries", "keys")
        for name, count in counts[f"9.0 | entmax-1.5 | 16384, causal | {kernel}"].items()
        if name != "kernel" and "edges" not in name
    }
    lines = [
        "| mapping | " + " | ".join(f"N={length}" for length in LENGTHS) + " |",
        "|---" * (len(LENGTHS) + 1) + "|",
    ]
    met = []
    for mapping in budget.MODELLED:
        ratios = [seconds(mapping, n).times(1 / sdpa_seconds(n)) for n in LENGTHS]
        lines.append(
            f"| {mapping} | " + " | ".join(f"{a:.2f} to {b:.2f}" for a, b in ratios) + " |"
        )
        if mapping in AIMS:
            told = [
                _judged(r, AIMS[mapping], n) for n, r in zip(LENGTHS[:2], ratios[:2], strict=True)
            ]
            met.append(f"- {mapping}, {AIMS[mapping]} of SDPA: {', '.join(told)}.")
    long, told = ["", ""], []
    for n in LENGTHS[2:]:
        pairs = zip(seconds("entmax-1.5", n), peer_seconds(n), strict=True)
        bounds = Bounds(*sorted(ours / theirs for ours, theirs in pairs))
        long.append(f"{bounds.low:.2f} to {bounds.high:.2f}")
        told.append(_judged(bounds, 1.0, n))
    lines.append(f"| entmax-1.5, over AdaSplash-2 | {' | '.join(long)} |")
    met.append(f"- entmax-1.5, at or below AdaSplash-2: {', '.join(told)}.")
    shares = [
        f"{mapping} " + ", ".join(f"{search_of(mapping, n).live:.2f}" for n in LENGTHS[2:])
        for mapping in ("sparsemax", "entmax-1.5")
    ]
    steps = ", ".join(
        f"{sum(search_of('r-softmax', n).passes.values()):.1f} (N={n})" for n in LENGTHS
    )
    template = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    return template.format(
        triton=budget.pinned().stem.removeprefix("triton-"),
        table="\n".join(lines),
        aims="\n".join(met),
        passes=", ".join(f"{name} {count}" for name, count in passes.items()),
        peer=PEER,
        shares="; ".join(shares),
        steps=steps,
        ipc=IPC,
        clock=CLOCK / 1e9,
    )

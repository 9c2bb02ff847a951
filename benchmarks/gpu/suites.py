"""Stages from the cases of `benchmarks.attention`: ours compared with SDPA and with each peer."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Any

from benchmarks.attention import cases, step
from benchmarks.attention.cases import PASSES, AttentionCase
from benchmarks.attention.contestants import BASE, MASKED, Ours
from benchmarks.attention.suite import Attention
from benchmarks.command import Parser
from benchmarks.gpu.stage import Result, Setup
from benchmarks.race import Contestant, Race, Row
from benchmarks.record import Files
from benchmarks.tables import short
from benchmarks.timing import Effort

PATIENCE = 60.0  # seconds for a case
LONG = 200.0  # seconds for a case with a peer, which may tune for two minutes
SUITE = Attention()
FLASH = f"{BASE} flash"
BESIDE = " beside "
MAIN = ("N=128", "N=512", "MRPC", "causal N=8192")
LONG_TARGET = "causal N=16384"
# each peer at one length, in a separate process, because it may crash or tune for minutes
PEERS = (
    *(("N=512", name) for name in ("eager softmax", "entmax entmax15", "Liger sparsemax")),
    ("N=512", "AdaSplash v1"),
    ("causal N=8192", "FlexAttention"),
    ("causal N=8192", "AdaSplash v2"),
)
TINY = {
    "N=128": AttentionCase("attention", "N=128", 1, 16, 2, 16, few=True),
    "BERT-tiny": AttentionCase("step", "BERT-tiny", 2, 8, model="BERT-tiny", few=True),
    "causal N=8": AttentionCase("causal", "causal N=8", 1, 8, 2, 16, causal=True, few=True),
}
TINY_PEERS = (("causal N=8", "entmax entmax15"), ("N=128", "Liger sparsemax"))


@functools.cache
def every(setup: Setup) -> dict[str, AttentionCase]:
    """Return all cases by name, with a warm cache; without models that need a download."""
    if setup.rehearse:
        return TINY
    found = [c for c in cases.cases("cuda", quick=False) if c.model in ("", *step.RANDOM)]
    return {
        c.name: replace(c, caches=("warm",), few=c.few and c.name not in MAIN)
        for c in found
        if c.group != "length"
    }


def attention(setup: Setup) -> list[str]:
    """Return the main cases, which show whether the kernels are fast."""
    return [name for name in TINY if "N=" in name] if setup.rehearse else list(MAIN)


def steps(setup: Setup) -> list[str]:
    """Return the cases of training steps."""
    found = [name for name, case in every(setup).items() if case.model]
    return [name for name in found if not name.startswith(step.COMPILED)]


def compiled(setup: Setup) -> list[str]:
    """Return the cases of compiled training steps, which take minutes to compile."""
    return [name for name in every(setup) if name.startswith(step.COMPILED)]


def peers(setup: Setup) -> list[str]:
    """Return the cases that compare a peer with SDPA and ours."""
    return [f"{case}{BESIDE}{name}" for case, name in (TINY_PEERS if setup.rehearse else PEERS)]


def more(setup: Setup) -> list[str]:
    """Return all other cases, the shortest first after the one that has a target."""
    left = [c for c in every(setup).values() if c.name not in attention(setup) and not c.model]
    left.sort(key=lambda case: (case.name != LONG_TARGET, case.length))
    return [case.name for case in left]


def chosen(case: AttentionCase, peer: str, found: list[Any]) -> list[Contestant]:
    """Select SDPA and ours; or, given a peer, SDPA, the peer, and ours with its mapping."""
    if case.model:
        return found
    ours = [c for c in found if isinstance(c, Ours) and c.impl is None]
    if not peer:
        return [c for c in found if c.name in (BASE, MASKED, FLASH) or c in ours]
    (other,) = [c for c in found if c.name == peer]
    alike = [c for c in ours if c.mapping == other.mapping]
    return [c for c in found if c.name in (BASE, peer) or c in alike]


def measure(setup: Setup, name: str, seconds: float) -> Result:
    """Measure a case, and add it to the record of the suite."""
    begun = time.perf_counter()
    title, _, peer = name.partition(BESIDE)
    case = every(setup)[title]
    pace = SUITE.paces["quick" if setup.rehearse else "cuda"]
    # end early: a contestant without time left reports that, a killed process reports nothing
    effort = Effort(case.share * pace.seconds, pace.least, deadline=begun + 0.8 * seconds)
    found = chosen(case, peer, list(SUITE.contestants(case, setup.device)))
    measured = SUITE.measure(case, Race(found, SUITE.base, setup.device, effort))
    _files(setup).add(replace(case, name=name), measured, time.perf_counter() - begun)
    return {"shown": shown(measured["rows"])}


def shown(rows: list[Row]) -> str:
    """Return a line of times relative to SDPA, forward and with backward."""
    ratios: dict[str, list[str]] = {}
    for row in rows:
        if row["name"] != BASE:
            ratio = row.get("to", {}).get(BASE)
            ratios.setdefault(row["name"], []).append(short(ratio["median"]) if ratio else "-")
    passes = " / ".join(PASSES if len({row["pass"] for row in rows}) > 1 else ["step"])
    listed = ", ".join(f"{name} {' / '.join(found)}" for name, found in ratios.items())
    return f"over {BASE}, {passes}: {listed}"


@functools.cache
def _files(setup: Setup) -> Files:
    quick = ["--quick"] * setup.rehearse
    options = Parser().parse([SUITE.name, "--keep", "--out", str(setup.out), *quick])
    return Files(SUITE, setup.device, options)

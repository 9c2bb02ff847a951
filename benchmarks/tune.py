"""Time tiles, warps, stages and registers of each kernel, and ship the best as `tuned.py`.

Run as:
    python -m benchmarks tune --out results/benchmarks     # writes tune-<gpu>.json
    python -m benchmarks tune --enter results/benchmarks/tune-nvidia-h200.json
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.attention import cases as shapes
from benchmarks.attention.contestants import mapping_of
from benchmarks.table import Benchmark, Case, Pace
from benchmarks.timing import Contestant, DeviceClock, Race, Row, Task, wall_clock
from sparse_attn.kernels import attention
from sparse_attn.kernels.triton import plan, repeat_call, settings, tuned
from sparse_attn.kernels.triton.settings import KERNELS, LONG, MEDIUM, Setting, Table
from sparse_attn.mappings import Mapping, get_spec
from sparse_attn.system.files import read_json, write_text

# names of the table, and the mapping that is tuned for each: itself, or one for a whole family
NAMES = {
    "softmax": "softmax",
    "entmax-1.5": "entmax",
    "sparsemax": "sparsemax",
    "r-softmax": "r-softmax",
    "pointwise": "sigsoftmax",
    "threshold": "t-softmax",
    "projection": "sparsehourglass",
    "truncated": "top-p-softmax",
    "free": "relu",
}
ROWS = {MEDIUM: "N=512", LONG: "causal N=8192"}  # cases of benchmarks.attention
TINY = shapes.AttentionCase("tune", "N=144", 1, 144, heads=1, head_dim=16)
DEFAULT = "default"
GAIN = 0.97  # a setting replaces the default if it takes at most this share of its time
ALIKE = 0.1  # allowed relative difference of results by other tiles, in bfloat16
_FORWARD = [
    Setting(64, 64, registers=168),
    *(Setting(64, 64, stages=3, registers=r) for r in (None, 168, 128)),
    Setting(64, 32, stages=3),
    Setting(128, 64),
]
CANDIDATES = {
    "inference": _FORWARD,
    "forward": _FORWARD,
    "queries": [
        Setting(64, 64, stages=3),
        Setting(64, 64, registers=128),
        Setting(64, 128),
        Setting(128, 64, warps=8),
    ],
    "keys": [
        *(Setting(64, 64, stages=s, registers=r) for s in (2, 3) for r in (None, 168)),
        Setting(64, 64, registers=128),
        Setting(128, 64, warps=8),
    ],
}
MEANING = f"""\
Milliseconds of a call with each setting of a kernel, medians with quartiles; a ratio is the median
over interleaved rounds of the time divided by that of the default. A setting is a tile of queries x
keys, w warps, s stages and, where limited, r registers. `--enter` puts the fastest into the table
if it takes at most {GAIN:g} of the default's time."""


@dataclass(frozen=True)
class TuneCase(Case):
    """A kernel at the rows of a case of attention, for a name of the table; `key` is its place."""

    kernel: str
    row: str
    shape: shapes.AttentionCase

    @property
    def base(self) -> str:
        return DEFAULT


def cases(device: str, quick: bool) -> list[TuneCase]:
    """Return each kernel and name of the table, for medium and for long rows."""
    if quick:
        return [TuneCase(f"{k} of {MEDIUM} rows", "softmax", k, MEDIUM, TINY) for k in KERNELS[::3]]
    every = {case.name: case for case in shapes.cases("cuda", quick=False)}
    return [
        TuneCase(f"{kernel} of {row} rows", name, kernel, row, every[ROWS[row]])
        for row, name, kernel in itertools.product(ROWS, NAMES, KERNELS)
    ]


@dataclass(frozen=True)
class Candidate(Contestant):
    setting: Setting | None  # None: the default


def contestants(case: TuneCase, device: torch.device) -> list[Candidate]:
    """Return the candidates; in training, skipping tiles needs default tiles."""
    listed = case.kernel != "inference" and case.name in ("entmax-1.5", "sparsemax")
    chosen = [s for s in CANDIDATES[case.kernel] if not listed or s[:2] == (64, 64)]
    found = [None, *(chosen[:1] if case.shape is TINY else chosen)]
    return [Candidate(written(s) if s else DEFAULT, NAMES[case.name], False, s) for s in found]


def measure(case: TuneCase, race: Race[Candidate]) -> list[Row]:
    """Return the rows of a case, with the place in the table and the setting of each.

    A candidate whose results are not the default's is not timed.
    """
    data = shapes.problem(case.shape, race.device)
    name, spec = NAMES[case.name], get_spec(NAMES[case.name])
    assert spec.kernel
    key = (case.kernel, case.name, plan.row_bytes(data.key), case.row)
    names = case.name, spec.kernel.family
    usual = settings.default(race.device, case.kernel, names, key[2]) or Setting(64, 64)
    expected: list[Tensor] = []

    def make(candidate: Candidate) -> Task:
        table = {key: candidate.setting} if candidate.setting else {}
        facts = {"key": list(key), "setting": list(candidate.setting or usual)}
        call = one_kernel(case.kernel, mapping_of(name), data)
        task = Task(call, functools.partial(use, table, {}), facts)
        task.prepare()
        got = call()
        expected[:] = expected or got
        if not difference(got, expected) <= ALIKE:
            raise ValueError("wrong: not the default's result")
        return task

    clock = wall_clock if race.device.type == "cpu" else DeviceClock()
    with own_tables(), torch.enable_grad():
        return race.rows(make, "call", clock, memory=False)


def use(table: Table, plans: dict[Any, Any]) -> None:
    """Launch with this table from now on, and keep its plans apart from those of other tables."""
    settings.table_of = lambda device: table  # type: ignore[assignment]
    plan._PLANS, repeat_call._READY = plans, {}


@contextmanager
def own_tables() -> Iterator[None]:
    """Undo every `use` at the end."""
    before = settings.table_of, plan._PLANS, repeat_call._READY
    try:
        yield
    finally:
        settings.table_of, plan._PLANS, repeat_call._READY = before


def one_kernel(
    kernel: str, mapping: Mapping, data: shapes.Problem
) -> Callable[[], tuple[Tensor, ...]]:
    """Return the forward or backward call in which the kernel takes most of the time."""
    query, key, value = inputs = tuple(
        t.detach().requires_grad_(kernel != "inference") for t in data.inputs
    )

    def forward() -> Tensor:
        return attention(query, key, value, mapping, causal=data.case.causal, impl="triton")

    if kernel in ("inference", "forward"):
        return lambda: (forward().detach(),)
    with own_tables(), torch.enable_grad():
        use({}, {})
        out = forward()
    return lambda: torch.autograd.grad(out, inputs, data.grad, retain_graph=True)


def difference(got: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    pairs = zip(got, expected, strict=True)
    return max(((a - b).float().norm() / b.float().norm()).item() for a, b in pairs)


def written(setting: Setting) -> str:
    """Return the setting as short text, such as `64x64 w4 s3 r168`."""
    m, n, warps, stages, registers = setting
    return f"{m}x{n} w{warps} s{stages}" + (f" r{registers}" if registers else "")


def best_of(rows: Sequence[Row]) -> Row:
    """Return the row of the fastest setting, or of the default if that is hardly slower."""
    measured = [row for row in rows if row["reason"] is None and row["to"].get(DEFAULT)]
    fastest = min(measured, key=lambda row: row["to"][DEFAULT]["median"])
    (usual,) = (row for row in measured if row["name"] == DEFAULT)
    return fastest if fastest["to"][DEFAULT]["median"] <= GAIN else usual


def enter(path: Path) -> None:
    """Rewrite `tuned.py` of the package with the settings of a record."""
    record = read_json(path, str(path), "name a record of `python -m benchmarks tune`")
    write_text(Path(tuned.__file__), module(tables_with(record, path.as_posix())))
    print(f"wrote {tuned.__file__}")


def tables_with(record: dict[str, Any], source: str) -> tuned.Tables:
    """Return the shipped tables, updated with the best settings of a record."""
    where = record["environment"]
    timed: tuned.Rows = {}
    for case in record["cases"]:
        if any(row["name"] == DEFAULT and row["reason"] is None for row in case["rows"]):
            best = best_of(case["rows"])
            timed[tuple(best["key"])] = tuple(best["setting"])
    _, before = tuned.TABLES.get(where["device"], (None, {}))
    kept = {
        name: {key: row for key, row in rows.items() if key not in timed}
        for name, rows in before.items()
    }
    sources = {name: rows for name, rows in {**kept, source: timed}.items() if rows}
    return {**tuned.TABLES, where["device"]: (tuple(where["capability"]), sources)}


def module(tables: tuned.Tables) -> str:
    """Return the source of `tuned.py` with these tables."""
    before = Path(tuned.__file__).read_text(encoding="utf-8").partition("TABLES: ")[0]
    lines = []
    for device, (capability, sources) in sorted(tables.items()):
        lines += [f'    "{device}": (', f"        {capability},", "        {"]
        for source, rows in sorted(sources.items()):
            lines.append(f'            "{source}": {{')
            for (kernel, name, size, row), setting in sorted(rows.items()):
                lines.append(f'                ("{kernel}", "{name}", {size}, "{row}"): {setting},')
            lines.append("            },")
        lines += ["        },", "    ),"]
    return "\n".join([f"{before}TABLES: Tables = {{", *lines, "}", ""])


BENCHMARK = Benchmark(
    "tune",
    "Settings of the kernels",
    MEANING,
    {},
    {"cuda": Pace(0.3, 7, 1800), "quick": Pace(0, 2, 60)},
    cases,
    contestants,
    measure,
)

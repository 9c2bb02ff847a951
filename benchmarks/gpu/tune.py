"""Time tiles, warps, stages and registers of each kernel, and ship the best as `tuned.py`.

Run as:
    python -m benchmarks.gpu.tune results/benchmarks/gpu-nvidia-h200.json   # rewrites tuned.py
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.attention import cases, contestants
from benchmarks.gpu.stage import Result, Setup
from benchmarks.timing import DeviceClock, Effort, Task, measure, reason, rounded, wall_clock
from sparse_attn.kernels import attention
from sparse_attn.kernels.triton import again, plan, settings, tuned
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
TINY = cases.AttentionCase("tune", "N=144", 1, 144, heads=1, head_dim=16)
DEFAULT = "default"
FIRST_DEFAULT = "64x64 w4 s2"  # where the default was best in a record that does not name it
GAIN = 0.97  # a setting replaces the default if it takes at most this share of its time
SECONDS = 0.3  # seconds for the candidates of a kernel
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


def tasks(setup: Setup) -> list[str]:
    """Return a task for each kernel and each name of the table, for medium and for long rows."""
    if setup.rehearse:
        return [f"softmax {MEDIUM} {kernel}" for kernel in ("inference", "keys")]
    found = itertools.product(ROWS, NAMES, KERNELS)
    return [f"{name} {row} {kernel}" for row, name, kernel in found]


class Tuned:
    """A task: a kernel, the mapping for a name of the table, and its tensors."""

    def __init__(self, setup: Setup, task: str) -> None:
        self.name, row, self.kernel = task.split()
        every = {case.name: case for case in cases.cases("cuda", quick=False)}
        case = TINY if setup.rehearse else every[ROWS[row]]
        self.data = cases.problem(case, setup.device)
        self.key = (self.kernel, self.name, plan.row_bytes(self.data.key), row)
        self.mapping = contestants.mapping_of(NAMES[self.name])
        kernel = get_spec(NAMES[self.name]).kernel
        assert kernel
        names = self.name, kernel.family
        usual = settings.default(setup.device, self.kernel, names, self.key[2])
        self.default = usual or Setting(64, 64)

    def calls(self, few: bool) -> dict[str, Task]:
        """Return a call with each candidate; in training, skipping tiles needs default tiles."""
        listed = self.kernel != "inference" and self.name in ("entmax-1.5", "sparsemax")
        chosen = [s for s in CANDIDATES[self.kernel] if not listed or s[:2] == (64, 64)]
        found = {DEFAULT: self._task({})}
        for setting in chosen[:: 4 if few else 1]:
            found[written(setting)] = self._task({self.key: setting})
        return found

    def _task(self, table: Table) -> Task:
        call = one_kernel(self.kernel, self.mapping, self.data)
        return Task(call, functools.partial(use, table, {}))


def use(table: Table, plans: dict[Any, Any]) -> None:
    """Launch with this table from now on, and keep its plans apart from those of other tables."""
    settings.table_of = lambda device: table  # type: ignore[assignment]
    plan._PLANS, again._READY = plans, {}


@contextmanager
def own_tables() -> Iterator[None]:
    """Undo every `use` at the end."""
    before = settings.table_of, plan._PLANS, again._READY
    try:
        yield
    finally:
        settings.table_of, plan._PLANS, again._READY = before


def one_kernel(
    kernel: str, mapping: Mapping, data: cases.Problem
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


def written(setting: Setting) -> str:
    """Return the setting as short text, such as `64x64 w4 s3 r168`."""
    m, n, warps, stages, registers = setting
    return f"{m}x{n} w{warps} s{stages}" + (f" r{registers}" if registers else "")


def parsed(text: str) -> Setting:
    """Return the setting of a text by `written`."""
    tile, *others = text.split()
    sizes = [int(size) for size in tile.split("x")]
    return Setting(*sizes, *(int(other[1:]) for other in others))


def prepare(setup: Setup, task: str, seconds: float) -> Result:
    """Compile the candidates, and check that all agree with the default."""
    reasons, wrong = {}, []
    with own_tables(), torch.enable_grad():
        calls = Tuned(setup, task).calls(setup.rehearse)
        usual = _run(calls.pop(DEFAULT))
        for name, call in calls.items():
            try:
                if not _difference(_run(call), usual) <= ALIKE:
                    wrong.append(name)
            except Exception as error:  # too large a tile for this GPU, for example
                reasons[name] = reason(error)
    found: Result = {"not measured": reasons} if reasons else {}
    return found | ({"failed": f"{', '.join(wrong)}: not the default's result"} if wrong else {})


def _run(task: Task) -> Any:
    task.prepare()
    return task.run()


def _difference(got: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    pairs = zip(got, expected, strict=True)
    return max(((a - b).float().norm() / b.float().norm()).item() for a, b in pairs)


def time_candidates(setup: Setup, task: str, seconds: float) -> Result:
    """Measure the milliseconds of each candidate, and show the best if it gains enough."""
    clock = wall_clock if setup.rehearse else DeviceClock(cold=False)
    effort = Effort(0, 2, most=2) if setup.rehearse else Effort(SECONDS, 7)
    work = Tuned(setup, task)
    with own_tables(), torch.enable_grad():
        measured = measure(work.calls(setup.rehearse), clock, effort, DEFAULT)
    if (why := measured[DEFAULT].reason) is not None:
        return {"failed": f"{DEFAULT}: {why}"}
    times = {
        name: rounded(sorted(m.samples.values())[len(m.samples) // 2])
        for name, m in measured.items()
        if m.reason is None
    }
    best = best_of(times)
    shown = f"{best}, {times[best] / times[DEFAULT]:.2f} of the default"
    reasons = {name: m.reason for name, m in measured.items() if m.reason is not None}
    found = {"key": list(work.key), "ms": times, "best": best, "shown": shown}
    found[DEFAULT] = written(work.default)
    return {**found, "not measured": reasons} if reasons else found


def best_of(times: dict[str, float]) -> str:
    """Return the fastest setting, or the default if that is hardly slower."""
    fastest = min(times, key=lambda name: times[name])
    return fastest if times[fastest] <= GAIN * times[DEFAULT] else DEFAULT


def tables_with(record: dict[str, Any], source: str) -> tuned.Tables:
    """Return the shipped tables, updated with the settings that a record of `make gpu` timed."""
    where = record["environment"]
    device = where["device"]
    timed: tuned.Rows = {}
    for found in record["stages"]["tune"]["cases"].values():
        if "ms" in found:
            best = best_of(found["ms"])
            usual = found.get(DEFAULT, FIRST_DEFAULT)
            timed[tuple(found["key"])] = (*parsed(usual if best == DEFAULT else best),)
    _, before = tuned.TABLES.get(device, (None, {}))
    kept = {
        name: {key: row for key, row in rows.items() if key not in timed}
        for name, rows in before.items()
    }
    sources = {name: rows for name, rows in {**kept, source: timed}.items() if rows}
    return {**tuned.TABLES, device: (tuple(where["capability"]), sources)}


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


def main(path: str) -> None:
    """Rewrite `tuned.py` of the package."""
    record = read_json(Path(path), path, "name a record of `make gpu`")
    write_text(Path(tuned.__file__), module(tables_with(record, path)))
    print(f"wrote {tuned.__file__}")


if __name__ == "__main__":
    main(*sys.argv[1:])

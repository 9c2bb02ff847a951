"""Page of variants-DEVICE.json: shapes, kernel settings, a peer and host times of one GPU.

The record was made by hand, so no suite repeats it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.tables import short, table

Record = dict[str, Any]
Key = tuple[str, str, str]  # shape, pass, contestant
Times = dict[str, tuple[float, float]]  # milliseconds and ratio to SDPA of each setting
PASSES = {"False": "forward", "True": "forward+backward"}
COMMITTED = "base"
EXACT = (
    "Settings change times and not results. A third run, whose thresholds are settled less "
    "exactly, is in the JSON file only."
)


def page(record: Record) -> str:
    """Return the record in Markdown."""
    where = record["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    lines = [
        f"# Shapes and settings on {where['device']}",
        "",
        f"{versions}; {where['started']}, commit {where['commit']}.",
        "",
        f"{record['method']} `SDPA` is PyTorch's choice, `SDPA flash` is FlashAttention-2.",
        "",
        *(f"- {shape}: {sizes}" for shape, sizes in record["shapes"].items()),
    ]
    for which in PASSES.values():
        lines += ["", f"## As committed, {which}", "", "Milliseconds, and the ratio to SDPA.", ""]
        lines += shapes(record, which)
    lines += ["", "## The fastest setting tried", "", EXACT, "", *_fastest(record)]
    lines += ["", "## AdaSplash-2", "", f"{record['adasplash_2']['case']}.", ""]
    lines += _peer(record["adasplash_2"])
    lines += ["", "## Host time of a call", "", f"Microseconds; {record['host_us']['what']}.", ""]
    lines += _host(record["host_us"])
    lines += ["", "## Training step", "", f"Milliseconds; {record['step_ms']['what']}.", ""]
    return "\n".join([*lines, *_steps(record["step_ms"])]) + "\n"


def times(record: Record, runs: slice = slice(1)) -> dict[Key, list[Times]]:
    """Return the times of each case in some runs, by default the first."""
    found: dict[Key, list[Times]] = {}
    for run in record["runs"][runs]:
        of_run: dict[Key, Times] = {}
        for name, (ms, ratio) in run["cases"].items():
            shape, backward, contestant, setting = name.split("|")
            of_run.setdefault((shape, PASSES[backward], contestant), {})[setting] = ms, ratio
        for key, settings in of_run.items():
            found.setdefault(key, []).append(settings)
    return found


def shapes(record: Record, which: str) -> list[str]:
    """Return a table of one pass: contestants by shapes, with the settings of the commit."""
    found = {key: settings[COMMITTED] for key, (settings,) in times(record).items()}
    columns = [s for s in record["shapes"] if (s, which, "SDPA") in found]
    names = dict.fromkeys(n for shape, of, n in found if of == which and shape in columns)
    rows = []
    for name in names:
        cells = [found.get((shape, which, name)) for shape in columns]
        rows.append([name, *(f"{short(c[0])} ({c[1]:.2f})" if c else "" for c in cells)])
    return table(["contestant", *columns], rows)


def _fastest(record: Record) -> list[str]:
    """Return a table of the fastest setting of each case in the first two runs."""
    found = times(record, slice(2))
    rows = []
    for shape, which, name in sorted(found, key=partial(_place, record)):
        runs = found[shape, which, name]
        settings = max(runs, key=lambda run: run[COMMITTED][0] / min(run.values())[0])
        if len(settings) > 1:
            best = min(settings, key=settings.__getitem__)
            cells = [short(settings[setting][0]) for setting in (COMMITTED, best)]
            tried = len({setting for run in runs for setting in run}) - 1
            line = [shape, which, name, "none" if best == COMMITTED else best, *cells, str(tried)]
            rows.append(line)
    headings = [
        "shape",
        "pass",
        "contestant",
        "fastest",
        "as committed, ms",
        "fastest, ms",
        "tried",
    ]
    return table(headings, rows, text=4)


def _place(record: Record, key: Key) -> tuple[int, str, str]:
    return list(record["shapes"]).index(key[0]), *key[1:]


def _peer(found: Record) -> list[str]:
    passes = [which for which in PASSES.values() if which in found]
    names = found[passes[0]]
    rows = [[name, *(f"{found[which][name]:.2f}" for which in passes)] for name in names]
    return table(["contestant", *(f"{which}, ms" for which in passes)], rows)


def _host(found: Record) -> list[str]:
    """Return a table of the fastest series and the median; a launch has no passes."""
    rows = []
    for name, cells in found.items():
        if isinstance(cells, dict):
            rows.append([name, *(_ends(cells[which]) for which in PASSES.values())])
        elif name != "what":
            rows.append([name, _ends(cells), ""])
    return table(["call", *(f"{which}: least, median" for which in PASSES.values())], rows)


def _ends(cells: list[float]) -> str:
    return ", ".join(f"{cell:.0f}" for cell in cells)


def _steps(found: Record) -> list[str]:
    names = [name for name in found if name != "what"]
    modes = list(found[names[0]])
    rows = [[name, *(f"{found[name][mode]:.1f}" for mode in modes)] for name in names]
    return table(["attention", *modes], rows)

"""The records in one page: what went wrong, and the times beside the targets."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.attention.cases import PASSES
from benchmarks.attention.contestants import BASE, MAPPINGS, MASKED
from benchmarks.gpu.runner import Progress
from benchmarks.gpu.sanity import UNITS
from benchmarks.gpu.stage import Setup, Stage
from benchmarks.record import device_name, slug
from benchmarks.tables import short, table
from sparse_attn.mappings import get_spec

# times over SDPA's without a mask: forward and backward at BERT's sizes, and training steps
SIZES = ("N=128", "N=512")
AT_MOST = {"r-softmax": 1.4, "sparsemax": 1.25, "entmax": 1.25}
AT_MOST |= dict.fromkeys((n for n in MAPPINGS if " " not in n and get_spec(n).log_g), 1.05)
STEP = 1.03
MOST = 10  # failing tests of a file that are shown
ADASPLASH = "AdaSplash v2"  # over whose time entmax takes at most 1 on causal rows

Row = dict[str, Any]


class Tables:
    """Times beside the targets, from a record of the suite; counts what is met and missed."""

    def __init__(self, cases: Sequence[dict[str, Any]]) -> None:
        self.cases = cases
        self.counts = Counter[str]()
        self.rows: dict[str, dict[str, dict[str, Row]]] = defaultdict(dict)
        for case in cases:
            self.rows[case["group"]][case["name"]] = {
                row["name"]: row
                for row in case["rows"]
                if row["pass"] in ("step", PASSES[1]) and row["cache"] != "cold"
            }

    def attention(self) -> list[str]:
        """Mappings beside SDPA at BERT's sizes."""
        head = "Forward and backward, time over that of SDPA (and of SDPA with a mask):"
        lines = []
        for name, limit in AT_MOST.items():
            cells = [name, short(limit)]
            for size in SIZES:
                rows = self.rows["attention"].get(size, {})
                ratio, masked = _ratio(rows, f"ours {name}"), _ratio(rows, MASKED)
                beside = f" ({short(ratio / masked)})" if ratio and masked else ""
                cells.append(self._judged(ratio, limit, beside))
            lines.append(cells)
        return _table(head, ["", "at most", *SIZES], lines)

    def steps(self) -> list[str]:
        """Training steps beside SDPA."""
        head = f"Training step, time over that of SDPA, at most {STEP}:"
        models = self.rows["step"]
        names = dict.fromkeys(n for rows in models.values() for n in rows if n.startswith("ours"))
        lines = [[n, *(self._judged(_ratio(r, n), STEP) for r in models.values())] for n in names]
        return _table(head, ["", *models], lines)

    def causal(self) -> list[str]:
        """entmax with alpha = 1.5 beside AdaSplash-2."""
        head = "entmax with alpha = 1.5, forward and backward, at most the time of AdaSplash-2:"
        lines = [
            [
                name,
                self._judged(_ratio(rows, "ours entmax", ADASPLASH), 1.0),
                short(_ratio(rows, "ours entmax")),
            ]
            for name, rows in self.rows["causal"].items()
        ]
        return _table(head, ["", "over AdaSplash-2", f"over {BASE}"], lines)

    def reasons(self) -> list[str]:
        """Why some were not measured: errors, and wrong results."""
        found = dict.fromkeys(
            f"- {case['name']}, {row['name']}: {row['reason']}"
            for case in self.cases
            for row in case["rows"]
            if row["reason"] and (row["ours"] or row["name"] == ADASPLASH)
        )
        return ["", "Not measured:", "", *found] if found else []

    def _judged(self, ratio: float | None, limit: float, beside: str = "") -> str:
        """A cell: the ratio, what stands beside it, and whether it is within the limit."""
        said = "not measured" if ratio is None else "met" if ratio <= limit else "missed"
        self.counts[said] += 1
        return said if ratio is None else f"{short(ratio)}{beside} {said}"


def _table(head: str, headings: list[str], lines: list[list[str]]) -> list[str]:
    return ["", head, "", *table(headings, lines)] if lines else []


def _ratio(rows: dict[str, Row], name: str, base: str = BASE) -> float | None:
    """The median over rounds; None if either was not measured."""
    found = rows.get(name, {}).get("to", {}).get(base)
    return found["median"] if found else None


def page(setup: Setup, progress: Progress, stages: Sequence[Stage]) -> str:
    """The verdict in Markdown."""
    device = device_name(setup.device)
    file = setup.out / f"attention-{slug(device)}.json"
    tables = Tables(json.loads(file.read_text())["cases"] if file.exists() else [])
    shown = [tables.attention(), tables.steps(), tables.causal(), tables.reasons()]
    counts = ", ".join(f"{tables.counts[said]} {said}" for said in ("met", "missed"))
    where = progress.record["environment"]
    versions = ", ".join(f"{name} {v}" for name, v in where["versions"].items() if v)
    left = [stage.name for stage in stages if progress.left(stage, setup)]
    again = f"Left: {', '.join(left)}; run the same command again."
    lines = [
        f"# {device}: targets {counts}, {tables.counts['not measured']} not measured",
        "",
        f"{versions}; {where['started']}, commit {where['commit'] or 'unknown'}.",
        "",
        *(line for stage in stages for line in _stage(setup, progress, stage)),
        *(line for lines in shown for line in lines),
        "",
        again if left else "Nothing is left.",
    ]
    return "\n".join(lines) + "\n"


def _stage(setup: Setup, progress: Progress, stage: Stage) -> list[str]:
    """A line for a stage, and one for each case that went wrong."""
    entry, total = progress.of(stage), len(stage.cases(setup))
    results: dict[str, dict[str, Any]] = entry["cases"]
    counts = Counter(
        next((kind for kind in ("failed", "skipped") if kind in result), "ok")
        for result in results.values()
    )
    counts["without time"] = 0 if progress.left(stage, setup) else total - len(results)
    said = [f"{number} {kind}" for kind, number in counts.items() if number]
    if passed := sum(result.get("passed", 0) for result in results.values()):
        said.append(f"{passed:,} tests passed")
    for name, unit in UNITS.items():
        if unit in results.get(name, {}):
            said.append(f"{name} {short(results[name][unit])} {unit}")
    lines = [f"- {stage.name}: {', '.join(said) or 'not run'}; {entry['seconds']:.0f} s"]
    for reason in dict.fromkeys(r["skipped"] for r in results.values() if "skipped" in r):
        lines.append(f"  - skipped: {reason}")
    for case, result in results.items():
        if "failed" in result:
            lines.append(f"  - {case}: {result['failed']}")
            lines += [f"    - {test}" for test in result.get("tests", [])[:MOST]]
    return lines

"""Page of all records: the verdict first, then the outcome of each stage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.attention.cases import PASSES
from benchmarks.attention.contestants import BASE
from benchmarks.attention.step import COMPILED
from benchmarks.gpu.page import correct, headed, settings
from benchmarks.gpu.runner import StageProgress
from benchmarks.gpu.sanity import UNITS
from benchmarks.gpu.stage import Setup, Stage
from benchmarks.gpu.suites import BESIDE, FLASH, LONG_TARGET
from benchmarks.record import device_name, slug
from benchmarks.tables import short

# most time relative to a peer, forward and backward, by case and peer; STEP: of training steps
TARGETS: dict[tuple[str, str], dict[str, float]] = {
    ("N=128", BASE): {"softmax": 1.0, "entmax": 1.0, "sparsemax": 1.1, "r-softmax": 1.3},
    ("MRPC", BASE): {"sparsemax": 0.65, "entmax": 0.65, "r-softmax": 1.1},
    ("N=512", BASE): {"softmax": 1.2, "entmax": 1.9, "sparsemax": 1.9, "r-softmax": 2.5},
    (LONG_TARGET, FLASH): {"softmax": 0.85, "entmax": 1.3},
    (f"causal N=8192{BESIDE}AdaSplash v2", "AdaSplash v2"): {"entmax": 0.9},
}
STEP, COMPILED_STEP = 1.08, 1.1
MOST = 10  # failures of a stage that are shown

Row = dict[str, Any]


class Tables:
    """Times with their limits, from a record of the suite; counts limits met and missed."""

    def __init__(self, cases: Sequence[dict[str, Any]]) -> None:
        self.cases = cases
        self.counts = Counter[str]()
        # keys: case, contestant, pass
        self.rows: dict[str, dict[str, dict[str, Row]]] = {}
        for case in cases:
            rows = self.rows.setdefault(case["name"], {})
            for row in case["rows"]:
                rows.setdefault(row["name"], {})[row["pass"]] = row

    def attention(self, base: str = BASE) -> list[str]:
        """Return the table of all contestants relative to a peer, forward and with backward."""
        cases = self._named(lambda case: case["group"] != "step" and BESIDE not in case["name"])
        if base != BASE:
            cases = [case for case in cases if (case, base) in TARGETS]
        names = dict.fromkeys(name for case in cases for name in self.rows[case])
        lines = [
            [name, *(self._cell(case, name, base) for case in cases)]
            for name in names
            if name != base
        ]
        head = f"Time over that of {base}, forward / forward and backward:"
        return headed(head, ["", *cases], lines)

    def steps(self) -> list[str]:
        """Return the table of training steps relative to SDPA."""
        cases = self._named(lambda case: case["group"] == "step")
        names = dict.fromkeys(n for case in cases for n in self.rows[case] if n.startswith("ours"))
        lines = []
        for name in names:
            cells = [name]
            for case in cases:
                limit = COMPILED_STEP if case.startswith(COMPILED) else STEP
                cells.append(self._judged(self._ratio(case, name, "step"), limit))
            lines.append(cells)
        return headed(f"Training step, time over that of {BASE}:", ["", *cases], lines)

    def peers(self) -> list[str]:
        """Return the table of our times relative to a peer with the same mapping."""
        lines = [
            [case, name, self._cell(case, name, case.partition(BESIDE)[2])]
            for case in self._named(lambda case: BESIDE in case["name"])
            for name in self.rows[case]
            if name.startswith("ours")
        ]
        head = "Time of ours over that of a peer, forward / forward and backward:"
        return headed(head, ["", "ours", "over the peer"], lines)

    def reasons(self) -> list[str]:
        """Return the reasons of missing measurements: errors and wrong results."""
        found = dict.fromkeys(
            f"- {case['name']}, {row['name']}: {row['reason']}"
            for case in self.cases
            for row in case["rows"]
            if row["reason"] and (row["ours"] or BESIDE in case["name"])
        )
        return ["", "Not measured:", "", *found] if found else []

    def _named(self, wanted: Callable[[dict[str, Any]], bool]) -> list[str]:
        return [case["name"] for case in self.cases if wanted(case)]

    def _ratio(self, case: str, name: str, which: str, base: str = BASE) -> float | None:
        """Return the median ratio over rounds; None if either was not measured."""
        found = self.rows[case].get(name, {}).get(which, {}).get("to", {}).get(base)
        return found["median"] if found else None

    def _cell(self, case: str, name: str, base: str) -> str:
        ahead, both = (self._ratio(case, name, which, base) for which in PASSES)
        # given by key_lengths, padding has the target of a mask
        mapping = name.removeprefix("ours ").removesuffix(" (key_lengths)")
        limit = TARGETS.get((case, base), {}).get(mapping) if name.startswith("ours ") else None
        return f"{short(ahead) or '-'} / {self._judged(both, limit)}"

    def _judged(self, ratio: float | None, limit: float | None) -> str:
        """Return a cell: the ratio, and whether it is within the limit."""
        if ratio is None:
            return "-"
        if limit is None:
            return short(ratio)
        said = "met" if ratio <= limit else "missed"
        self.counts[said] += 1
        return f"{short(ratio)}, {said} {short(limit)}"


def page(setup: Setup, progress: StageProgress, stages: Sequence[Stage]) -> str:
    """Return the verdict in Markdown: correctness, ratios, training steps, and the stages."""
    device = device_name(setup.device)
    file = setup.out / f"attention-{slug(device)}.json"
    tables = Tables(json.loads(file.read_text())["cases"] if file.exists() else [])
    over_sdpa, over_flash = tables.attention(), tables.attention(FLASH)
    shown = [over_sdpa, over_flash, tables.steps(), tables.peers(), tables.reasons()]
    where = progress.record["environment"]
    versions = ", ".join(f"{name} {v}" for name, v in where["versions"].items() if v)
    left = [stage.name for stage in stages if progress.left(stage, setup)]
    again = f"Left: {', '.join(left)}; run the same command again."
    lines = [
        f"# {device}: {correct(progress.record)}; targets {tables.counts['met']} met, "
        f"{tables.counts['missed']} missed",
        "",
        f"{versions}; {where['started']}, commit {where['commit'] or 'unknown'}.",
        *(line for lines in shown for line in lines),
        *settings(progress.record),
        "",
        *(line for stage in stages for line in _stage(setup, progress, stage)),
        "",
        again if left else "Nothing is left.",
    ]
    return "\n".join(lines) + "\n"


def _stage(setup: Setup, progress: StageProgress, stage: Stage) -> list[str]:
    """Return a line for a stage, and one for each failed case."""
    entry, total = progress.of(stage), len(stage.cases(setup))
    results: dict[str, dict[str, Any]] = entry["cases"]
    counts = Counter(
        next((kind for kind in ("failed", "skipped") if kind in result), "ok")
        for result in results.values()
    )
    counts["without time"] = 0 if progress.left(stage, setup) else total - len(results)
    said = [f"{number} {kind}" for kind, number in counts.items() if number]
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

"""Page of all records: the verdict first, then the outcome of each stage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.attention.cases import PASSES
from benchmarks.attention.contestants import BASE, MAPPINGS
from benchmarks.gpu.page import correct, headed, settings
from benchmarks.gpu.runner import StageProgress
from benchmarks.gpu.sanity import UNITS
from benchmarks.gpu.stage import Setup, Stage
from benchmarks.gpu.suites import BESIDE
from benchmarks.record import device_name, slug
from benchmarks.tables import short
from sparse_attn.mappings import get_spec

# limits of time relative to SDPA without a mask, forward and backward; STEP: of training steps
AT_MOST = {"r-softmax": 1.4, "sparsemax": 1.25, "entmax": 1.25}
AT_MOST |= dict.fromkeys((n for n in MAPPINGS if " " not in n and get_spec(n).log_g), 1.05)
JUDGED = ("N=128", "N=512")
STEP = 1.03
MOST = 10  # failures of a stage that are shown
ADASPLASH = "AdaSplash v2"  # entmax must not be slower than this on causal rows

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

    def attention(self) -> list[str]:
        """Return the table of all contestants relative to SDPA, forward and with backward."""
        cases = self._named(lambda case: case["group"] != "step" and BESIDE not in case["name"])
        names = dict.fromkeys(name for case in cases for name in self.rows[case])
        lines = []
        for name in [name for name in names if name != BASE]:
            limit = AT_MOST.get(name.removeprefix("ours "))
            cells = [name, short(limit)]
            for case in cases:
                ahead, both = (self._ratio(case, name, which) for which in PASSES)
                judged = self._judged(both, limit if case in JUDGED else None)
                cells.append(f"{short(ahead) or '-'} / {judged}")
            lines.append(cells)
        head = f"Time over that of {BASE}, forward / forward and backward:"
        return headed(head, ["", "at most", *cases], lines)

    def steps(self) -> list[str]:
        """Return the table of training steps relative to SDPA."""
        cases = self._named(lambda case: case["group"] == "step")
        names = dict.fromkeys(n for case in cases for n in self.rows[case] if n.startswith("ours"))
        lines = [
            [name, *(self._judged(self._ratio(case, name, "step"), STEP) for case in cases)]
            for name in names
        ]
        return headed(
            f"Training step, time over that of {BASE}, at most {STEP}:", ["", *cases], lines
        )

    def peers(self) -> list[str]:
        """Return the table of our times relative to a peer with the same mapping."""
        lines = []
        for case in self._named(lambda case: BESIDE in case["name"]):
            peer = case.partition(BESIDE)[2]
            limit = 1.0 if peer == ADASPLASH else None
            for name in [name for name in self.rows[case] if name.startswith("ours")]:
                ahead, both = (self._ratio(case, name, which, peer) for which in PASSES)
                lines.append([case, name, f"{short(ahead) or '-'} / {self._judged(both, limit)}"])
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

    def _judged(self, ratio: float | None, limit: float | None) -> str:
        """Return a cell: the ratio, and whether it is within the limit."""
        if ratio is None:
            return "-"
        if limit is None:
            return short(ratio)
        said = "met" if ratio <= limit else "missed"
        self.counts[said] += 1
        return f"{short(ratio)} {said}"


def page(setup: Setup, progress: StageProgress, stages: Sequence[Stage]) -> str:
    """Return the verdict in Markdown: correctness, ratios, training steps, and the stages."""
    device = device_name(setup.device)
    file = setup.out / f"attention-{slug(device)}.json"
    tables = Tables(json.loads(file.read_text())["cases"] if file.exists() else [])
    shown = [tables.attention(), tables.steps(), tables.peers(), tables.reasons()]
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

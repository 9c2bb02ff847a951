"""The Markdown tables of one case of attention, and what the tables of every record are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.cases import GROUPS

Row = dict[str, Any]
ERRORS = ("max_error", "gradient_error")


def case_tables(case: dict[str, Any]) -> list[str]:
    """Heading, a table a cache, ratios to peers, and what was not measured and why."""
    lines = [
        f"## {case['group']}: {case['name']}",
        "",
        f"{case['title']} ({GROUPS[case['group']]}).",
    ]
    if "environment" in case:
        where = case["environment"]
        lines += [f"Measured {where['started']} at commit {where['commit'] or 'unknown'}."]
    caches = list(dict.fromkeys(row["cache"] for row in case["rows"]))
    for cache in caches:
        chosen = [row for row in case["rows"] if row["cache"] == cache]
        if cache:
            lines += ["", f"### {cache} cache"]
        lines += ["", *_times(chosen), *_peers(chosen)]
    return lines + _reasons(case["rows"])


def _times(found: list[Row]) -> list[str]:
    passes = list(dict.fromkeys(row["pass"] for row in found))
    names = list(dict.fromkeys(row["name"] for row in found if row["reason"] is None))
    by = {(row["name"], row["pass"]): row for row in found if row["reason"] is None}
    heads = ["contestant", *(h for p in passes for h in (f"{p}, ms", "/ SDPA", "n", "MiB"))]
    errors = [key for key in ERRORS if any(key in row for row in by.values())]
    heads += [key.replace("_", " ") for key in errors]
    lines = [line(heads), line(["---", *["--:"] * (len(heads) - 1)])]
    for name in names:
        cells = [_title(next(by[name, p] for p in passes if (name, p) in by))]
        for which in passes:
            row = by.get((name, which), {})
            rounds = str(row["ms"]["n"]) if row else ""
            cells += [spread(row.get("ms")), spread(row.get("to_sdpa")), rounds]
            cells.append(short(row.get("memory_mib")))
        row = {k: v for p in passes for k, v in by.get((name, p), {}).items()}
        cells += [f"{row[key]:.1e}" if key in row else "" for key in errors]
        lines.append(line(cells))
    return lines


def _title(row: Row) -> str:
    """The name, with the implementation that was taken where the name leaves it open."""
    taken = row.get("implementation")
    return f"{row['name']} [{taken}]" if taken and "[" not in row["name"] else row["name"]


def _peers(found: list[Row]) -> list[str]:
    pairs = [(row, peer, s) for row in found for peer, s in (row.get("to_peers") or {}).items()]
    pairs = [(row, peer, s) for row, peer, s in pairs if s and row["mapping"] != "softmax"]
    if not pairs:
        return []
    lines = ["", line(["ours", "peer", "pass", "ours / peer"]), line(["---"] * 3 + ["--:"])]
    for row, peer, summary in pairs:
        lines.append(line([_title(row), peer, row["pass"], spread(summary)]))
    return lines


def _reasons(found: list[Row]) -> list[str]:
    """Each reason once, with the passes it holds for."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in found:
        if row["reason"] is not None:
            passes = reasons.setdefault((row["name"], row["reason"]), [])
            if row["pass"] not in passes:
                passes.append(row["pass"])
    if not reasons:
        return []
    lines = ["", "Not measured:", ""]
    for (name, reason), passes in reasons.items():
        lines.append(f"- {name} ({', '.join(passes)}): {reason}")
    return lines


# For the tables of every record


def spread(summary: dict[str, Any] | None) -> str:
    """Median (lower quartile-upper quartile), empty for None."""
    if summary is None:
        return ""
    return f"{short(summary['median'])} ({short(summary['q1'])}-{short(summary['q3'])})"


def short(value: float | None) -> str:
    """Three digits, or all before the point; empty for None."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def line(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"

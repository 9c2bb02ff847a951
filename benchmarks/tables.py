"""Markdown tables of records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.race import Row

ERRORS = ("max_error", "gradient_error", "gradient_difference")


@dataclass(frozen=True)
class Column:
    """A column of facts with its heading; relative ones also show the ratio to the base."""

    key: str
    heading: str
    relative: bool = False


def section(case: dict[str, Any], about: str, base: str, columns: Sequence[Column]) -> list[str]:
    """Return heading, a table per cache state, ratios to peers, reasons for missing rows."""
    lines = [f"## {case['group']}: {case['name']}", "", f"{case['title']} ({about})."]
    lines += measured(case)
    for cache in dict.fromkeys(row["cache"] for row in case["rows"]):
        chosen = [row for row in case["rows"] if row["cache"] == cache and row["reason"] is None]
        if cache:
            lines += ["", f"### {cache} cache"]
        if chosen:
            lines += ["", *_times(chosen, base, columns), *_peers(chosen, base)]
    return lines + reasons(case["rows"])


def measured(case: dict[str, Any]) -> list[str]:
    """Return a line with the date of a case that is kept from an earlier run."""
    where = case.get("environment")
    return (
        [f"Measured {where['started']} at commit {where['commit'] or 'unknown'}."] if where else []
    )


def _times(found: list[Row], base: str, columns: Sequence[Column]) -> list[str]:
    passes = list(dict.fromkeys(row["pass"] for row in found))
    names = list(dict.fromkeys(row["name"] for row in found))
    by = {(row["name"], row["pass"]): row for row in found}
    columns = [column for column in columns if any(column.key in row for row in found)]
    errors = [key for key in ERRORS if any(key in row for row in found)]
    headings = ["contestant"]
    for which in passes:
        headings += [f"{which}, ms", f"/ {base}", "n"]
        headings += [h for c in columns for h in (c.heading, f"/ {base}")[: 1 + c.relative]]
    lines = []
    for name in names:
        cells = [_title(next(by[name, which] for which in passes if (name, which) in by))]
        for which in passes:
            row, beside = by.get((name, which), {}), by.get((base, which), {})
            cells += [spread(row.get("ms")), spread(row.get("to", {}).get(base))]
            cells.append(str(row["ms"]["n"]) if row else "")
            for column in columns:
                own, its = row.get(column.key), beside.get(column.key)
                cells.append(short(own))
                if column.relative:
                    cells.append(short(own / its) if own is not None and its else "")
        merged = {k: v for which in passes for k, v in by.get((name, which), {}).items()}
        lines.append([*cells, *(f"{merged[e]:.1e}" if e in merged else "" for e in errors)])
    return table([*headings, *(key.replace("_", " ") for key in errors)], lines)


def _title(row: Row) -> str:
    """Return the name, with the implementation if the name does not determine it."""
    taken = row.get("implementation")
    return f"{row['name']} [{taken}]" if taken and "[" not in row["name"] else row["name"]


def _peers(found: list[Row], base: str) -> list[str]:
    """Return ratios of ours to peers of the same mapping; the base is in the table of times."""
    usual = {row["mapping"] for row in found if row["name"] == base}
    lines = [
        [_title(row), peer, row["pass"], spread(ratio)]
        for row in found
        for peer, ratio in row["to"].items()
        if ratio and row["ours"] and row["mapping"] not in usual and peer != base
    ]
    return ["", *table(["ours", "peer", "pass", "ours / peer"], lines, text=3)] if lines else []


def reasons(found: list[Row]) -> list[str]:
    """Return each reason once, with its passes."""
    found_for: dict[tuple[str, str], dict[str, None]] = {}
    for row in found:
        if row["reason"] is not None:
            found_for.setdefault((row["name"], row["reason"]), {})[row["pass"]] = None
    if not found_for:
        return []
    lines = ["", "Not measured:", ""]
    for (name, reason), passes in found_for.items():
        lines.append(f"- {name} ({', '.join(passes)}): {reason}")
    return lines


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> list[str]:
    """Return the lines of a table; all but its first `text` columns are numbers."""
    rule = ["---"] * text + ["--:"] * (len(headings) - text)
    return [f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows)]


def cell(case: dict[str, Any], *path: str) -> str:
    """Return the value of a case at `path`, which may start with a row name; empty if missing."""
    found: Any = {**case, **{row["name"]: row for row in case["rows"]}}
    for key in path:
        found = (found or {}).get(key)
    if isinstance(found, dict):
        return spread(found)
    return short(found) if isinstance(found, float | None) else f"{found:,}"


def spread(summary: dict[str, Any] | None) -> str:
    """Return the median (lower quartile-upper quartile), empty for None."""
    if summary is None:
        return ""
    return f"{short(summary['median'])} ({short(summary['q1'])}-{short(summary['q3'])})"


def short(value: float | None) -> str:
    """Return three significant digits, or all integer digits; empty for None."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

"""Page of a record of `make gpu`: checks, settings and stages. Times are on another page."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import short, table

Record = dict[str, Any]


def page(record: Record) -> str:
    """Return the record in Markdown."""
    where = record["environment"]
    versions = ", ".join(
        f"{name} {version}" for name, version in where["versions"].items() if version
    )
    lines = [
        f"# Checks and settings on {where['device']}",
        "",
        f"{versions}; {where['started']}, commit {where['commit']}.",
        "",
        *([record["note"], ""] if "note" in record else []),  # written by hand later
        f"{correct(record)} (`sanity`: every mapping against float64, and training steps).",
        *settings(record),
        "",
    ]
    for name, entry in record["stages"].items():
        wrong = {case: r["failed"] for case, r in entry["cases"].items() if "failed" in r}
        failed = f", {len(wrong)} failed" if wrong else ""
        said = f"{len(entry['cases'])} cases{failed}" if entry["cases"] else "not run"
        lines.append(f"- {name}: {said}; {entry['seconds']:.0f} s")
        lines += [f"  - {case}: {why}" for case, why in wrong.items()]
    return "\n".join(lines) + "\n"


def correct(record: Record) -> str:
    """Return a sentence with the number of checks and tests that passed."""
    stages = record["stages"]
    cases = stages.get("sanity", {"cases": {}})["cases"].values()
    wrong = sum("failed" in result for result in cases)
    tests = stages.get("tests", {"cases": {}})["cases"].values()
    passed = sum(result.get("passed", 0) for result in tests)
    failed = sum(len(result.get("tests", ())) for result in tests)
    said = f"{len(cases) - wrong} of {len(cases)} checks passed"
    return f"{said}, {passed:,} of {passed + failed:,} tests passed" if tests else said


def settings(record: Record) -> list[str]:
    """Return the settings that are faster than the default."""
    found = record["stages"].get("tune", {"cases": {}})["cases"]
    lines = [
        [name, result["best"], short(result["ms"][result["best"]] / result["ms"]["default"])]
        for name, result in found.items()
        if result.get("best", "default") != "default"
    ]
    return headed("Settings faster than the default:", ["", "setting", "of its time"], lines)


def headed(head: str, headings: list[str], lines: list[list[str]]) -> list[str]:
    """Return a table below its heading; nothing without lines."""
    return ["", head, "", *table(headings, lines)] if lines else []

"""The Markdown of benchmarks.heads' record."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import line, short, spread

Record = dict[str, Any]
PLAIN = "plain"
OURS = "ours"
MEANING = f"""An output layer with its loss: from hidden states and targets to the mean of -log p
and its gradients to hidden states, weight and bias; float32 on a CPU, bfloat16 on a GPU. `{PLAIN}`
makes all scores: for softmax `F.cross_entropy(F.linear(h, W, b).float(), t)`, otherwise our own
`log_prob`. `{OURS}` is `nll`, `{OURS}, unreduced` its reduction "none". `Apple` is
cut-cross-entropy, which on a CPU runs the plain form compiled.

Times are medians in milliseconds with quartiles, by the wall clock. A ratio is the median over
rounds of the time divided by that of `{PLAIN}` in the same round: below 1 is faster. `peak` is what
PyTorch allocates at most during the call, beyond its inputs; `beyond` leaves out the gradients of
W, b and other parameters, which everyone has to return. Scratch space outside PyTorch's allocator
is not seen on a CPU. `gradient` is how far the gradient of W is from that of `{PLAIN}`, as a
fraction of its norm."""
HEADINGS = ("contestant", "ms", "/ plain", "n", "peak, MiB", "/ plain", "beyond, MiB", "/ plain")


def markdown(record: Record) -> str:
    """The whole record as tables."""
    where = record["environment"]
    versions = ", ".join(f"{name} {v}" for name, v in where["versions"].items() if v)
    lines = [
        f"# Output layers on {where['device']}",
        "",
        f"{where['cpu']}, {where['threads']} threads; {versions}; {where['started']}, "
        f"commit {where['commit'] or 'unknown'}.",
        "",
        MEANING,
    ]
    for case in record["cases"]:
        lines += ["", *_case(case)]
    if record["left_out"]:
        lines += ["", f"Not reached within the time budget: {', '.join(record['left_out'])}."]
    return "\n".join(lines) + "\n"


def _case(case: Record) -> list[str]:
    by_name = {row["name"]: row for row in case["rows"]}
    lines = [
        f"## {case['group']}, {case['vocabulary']}",
        "",
        f"{case['meaning']}; {case['tokens']:,} tokens, d = {case['hidden']}, "
        f"V = {case['vocab']:,}.",
        "",
        line([*HEADINGS, "gradient"]),
        line(["---", *["--:"] * len(HEADINGS)]),
    ]
    for row in case["rows"]:
        if row["reason"] is None:
            lines.append(line(_cells(row, by_name[PLAIN])))
    return lines + _beside_peers(by_name) + _reasons(case["rows"])


def _cells(row: Record, plain: Record) -> list[str]:
    cells = [row["name"], spread(row["ms"]), spread(row["to"][PLAIN]), str(row["ms"]["n"])]
    for key in ("peak_mib", "beyond_gradients_mib"):
        cells += [short(row.get(key)), short(_quotient(row, plain, key))]
    difference = row.get("gradient_difference")
    return [*cells, "" if difference is None else f"{difference:.1e}"]


def _beside_peers(by_name: dict[str, Record]) -> list[str]:
    """Ours beside those who are neither plain nor ours."""
    ours = by_name[OURS]
    lines = []
    for name, peer in by_name.items():
        if peer["reason"] is None and not name.startswith((PLAIN, OURS)) and "to" in ours:
            peak = short(_quotient(ours, peer, "peak_mib"))
            lines.append(f"- {OURS} / {name}: time {spread(ours['to'][name])}, peak {peak}")
    return ["", *lines] if lines else []


def _reasons(rows: list[Record]) -> list[str]:
    lines = [f"- {row['name']}: {row['reason']}" for row in rows if row["reason"] is not None]
    return ["", "Not measured:", "", *lines] if lines else []


def _quotient(row: Record, other: Record, key: str) -> float | None:
    return row[key] / other[key] if key in row and key in other else None

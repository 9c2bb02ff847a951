"""`sparse-attn glue report`: the results of a sweep, as a page and a CSV table."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from sparse_attn.engine.sweep.results import Results
from sparse_attn.evaluation.tasks import TASKS
from sparse_attn.reports.page import Page
from sparse_attn.reports.text import listing

from .page import blocks, overview, verdicts
from .runs import Sweep
from .table import Row, make_rows


def make_page(results: Results) -> Page:
    """Return the report of a sweep."""
    sweep = Sweep(**vars(results))
    rows = make_rows(sweep)
    data = "GLUE" if set(sweep.tasks) & set(TASKS) else f"{listing(sweep.tasks)}:"
    title = f"{data} sweep {sweep.folder.resolve().name}"
    shown = overview(sweep, rows) if len(sweep.tasks) > 1 else verdicts(sweep, rows)
    return Page(title, blocks(sweep, rows), [shown], {"report.csv": _csv(rows)})


def _csv(rows: list[Row]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(_line(rows[0])))
    writer.writeheader()
    writer.writerows(map(_line, rows))
    return buffer.getvalue()


def _line(row: Row) -> dict[str, Any]:
    """Return a row of the CSV: plain numbers, scores as shares; None becomes an empty field."""
    found = row.difference
    return {
        "task": row.task,
        "mapping": row.mapping,
        "function": row.name,
        "metric": row.metric,
        "runs": len(row.scores),
        "failed": row.failed,
        "diverged": row.diverged,
        "one_class": row.one_class,
        "mean": row.mean,
        "sd": row.sd,
        "difference": found and found.value,
        "low": found and found.low,
        "high": found and found.high,
        "p": found and found.p,
        "p_holm": row.holm,
        "significant": int(row.significant),
        "paired_seeds": found.n if found else 0,
        "detectable": found and found.detectable,
        "settings": json.dumps(list(map(asdict, row.settings))),
        "sparsity": row.sparsity,
        "train_seconds": row.seconds,
        "seconds_of": row.seconds and ("cpu" if row.cpu else "wall"),
        "seconds_ratio": row.ratio,
        "peak_memory_mib": row.memory,
        "paper_accuracy": None if row.published is None else row.published / 100,
        "scores": json.dumps(row.scores),
    }

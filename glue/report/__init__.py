"""`python -m glue report`: what a sweep has found, as a page, a text and a table."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from glue.report.page import make_page
from glue.report.runs import read_sweep
from glue.report.table import Row, make_rows
from pipeline.files import write_text
from pipeline.report import canvas, text
from pipeline.report.table import Report
from sparse_attn.files import whole

_TEMPLATES = Path(__file__).parent / "templates"


def report(results_dir: str, output_dir: str | None = None) -> Report:
    """Write report.html, report.md and report.csv about a sweep; the first is the page.

    Args:
        results_dir: folder of the sweep, which may be half done.
        output_dir: where to write; results_dir if left out.

    Raises:
        ValueError: results_dir holds no sweep, or not one record of it. Nothing is written then.
    """
    sweep = read_sweep(Path(results_dir))
    rows = make_rows(sweep)
    page = make_page(sweep, rows)
    folder = Path(results_dir if output_dir is None else output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    html = _environment(autoescape=True).get_template("page.html.j2")
    plain = _environment(autoescape=False).get_template("report.md.j2")
    write_text(folder / "report.md", plain.render(page=page))
    _write_csv(folder / "report.csv", rows)
    path = folder / "report.html"
    write_text(path, html.render(page=page))
    return Report(path, [page.overview])


def _environment(autoescape: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"image": canvas.encode, "md": text.markdown}
    return environment


def _write_csv(path: Path, rows: list[Row]) -> None:
    with whole(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(_line(rows[0])))
        writer.writeheader()
        writer.writerows(map(_line, rows))


def _line(row: Row) -> dict[str, Any]:
    """Plain numbers, scores as shares; None becomes an empty field."""
    found = row.difference
    settings = [
        {"learning_rate": s.learning_rate, "params": s.params, "seeds": s.seeds}
        for s in row.settings
    ]
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
        "p_holm_tasks": row.holm_tasks,
        "p_holm_all": row.holm_all,
        "significant": int(row.significant),
        "paired_seeds": found.seeds if found else 0,
        "detectable": found and found.detectable,
        "settings": json.dumps(settings),
        "sparsity": row.sparsity,
        "train_seconds": row.seconds,
        "seconds_of": row.seconds and ("cpu" if row.cpu else "wall"),
        "seconds_ratio": row.ratio,
        "peak_memory_mib": row.memory,
        "paper_accuracy": None if row.published is None else row.published / 100,
        "scores": json.dumps(row.scores),
    }

"""The demo's tables, plot and page, from the records of its two parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from engine.command import from_dict
from glue.config import MappingConfig
from sparse_attn.comparison.measure import CONTROL
from sparse_attn.comparison.page import table as compared
from sparse_attn.reports import canvas, text
from sparse_attn.reports.page import Heading, Page, Plot, Table
from sparse_attn.reports.seed_statistics import Difference

LINES = ("r-softmax", CONTROL)
POINTS = ("entmax", "sparsemax")


def retrieval_table(record: dict[str, Any]) -> Table:
    """Return a row per setting: zeros, right answers and their difference from softmax."""
    rows = [
        [
            row["setting"],
            f"{row['zeros']:.1%}",
            f"{row['right']:.1%}",
            *(_judged(row) if row["zeros"] else [text.NOTHING] * 2),
        ]
        for row in record["rows"]
    ]
    caption = f"Questions: {record['questions']}. Candidates: {record['candidates']}. Untrained."
    headers = ["attention", "exact zeros", "right answer first", "against softmax, points [95 %]"]
    headers.append("verdict")
    return Table(caption, headers, rows)


def _judged(row: dict[str, Any]) -> list[str]:
    low, high = (100 * end for end in row["interval"])
    difference = Difference(100 * row["difference"], (low, high), 1)
    return [difference.text("{:+.1f}"), difference.verdict()]


def forgetting(record: dict[str, Any]) -> Figure:
    """Plot right answers by zeros; bands are the intervals of the differences from softmax."""
    (start,) = _rows_of(record, "softmax")
    figure, axes = canvas.single(height=4.4)
    looks = canvas.looks((*LINES, *POINTS, "softmax"), "softmax")
    for mapping in (*LINES, *POINTS):
        rows, look = _rows_of(record, mapping), looks[mapping]
        if mapping in POINTS:
            look |= {"linestyle": "none"}
        else:
            rows = [start, *rows]
            zeros = [100 * row["zeros"] for row in rows]
            low, high = (
                [100 * (start["right"] + row["interval"][end]) for row in rows] for end in (0, 1)
            )
            axes.fill_between(zeros, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(*_points(rows), **look, label=canvas.name(mapping))
    axes.plot(
        *_points([start]), **looks["softmax"] | {"linestyle": "none"}, label="softmax", zorder=3
    )
    axes.set(xlabel="exact zeros, % of valid keys", ylabel="right answer first, %")
    axes.set_ylim(0, 100)
    canvas.legend_below(figure, axes)
    return figure


def training_table(results: Sequence[dict[str, Any]]) -> Table:
    """Return a row per run: dev accuracy after each epoch, final zeros and time."""
    epochs = [f"epoch {entry['epoch']:g}" for entry in results[0]["per_epoch"]]
    rows = [
        [
            from_dict(MappingConfig, result["config"]["mapping"]).title,
            *(f"{entry['accuracy']:.1%}" for entry in result["per_epoch"]),
            f"{result['sparsity']['dev']['mean']:.1%}",
            f"{result['seconds']['train']:.0f}",
        ]
        for result in results
    ]
    count = results[0]["rows"]
    caption = (
        "A sentence, or its words in random order? Accuracy on held-out rows. "
        f"Rows: {count['train']} to train on, {count['dev']} held out."
    )
    return Table(caption, ["fine-tuned with", *epochs, "exact zeros", "seconds"], rows)


def make_page(
    record: dict[str, Any],
    results: Sequence[dict[str, Any]],
    reading: dict[str, Any] | None = None,
) -> Page:
    """Return the page with all acts; `reading` is None if there is no language model."""
    tables = retrieval_table(record), training_table(results)
    first = [] if reading is None else [compared(reading)]
    title = "Right answers by exact zeros"
    caption = "Bands: 95 % intervals of the difference from softmax, over questions."
    return Page(
        "What can attention forget?",
        [
            *([Heading("A language model"), *first] if first else []),
            Heading("A sentence encoder, without training"),
            Plot("forgetting", title, caption, forgetting(record)),
            tables[0],
            Heading("Fine-tuned"),
            tables[1],
        ],
        overview=[*first, *tables],
    )


def _points(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [100 * row["zeros"] for row in rows], [100 * row["right"] for row in rows]


def _rows_of(record: dict[str, Any], mapping: str) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if row["mapping"] == mapping]

"""Tables of text."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report import text


@dataclass(frozen=True)
class Table:
    """A caption, headers and rows of text."""

    caption: str
    headers: list[str]
    rows: list[list[str]]


def plain(table: Table) -> list[str]:
    """The lines of the table as a terminal shows them, numbers to the right."""
    lines = [table.headers, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "   ".join(
            [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))]
        ).rstrip()
        for first, *rest in lines
    ]


def markdown(table: Table) -> list[str]:
    """The lines of the table, under its caption."""
    lines = [text.markdown(table.caption), ""]
    for place, row in enumerate([table.headers, *table.rows]):
        lines.append(f"| {' | '.join(map(text.markdown, row))} |")
        if place == 0:
            lines.append("|" + " --- |" * len(row))
    return [*lines, ""]

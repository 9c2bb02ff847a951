"""Tables of text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparse_attn.reports import text

_NUMBER = re.compile(r"[-+<( \[]*\d|[-+]?inf|nan|n/a|not run|-?$")


@dataclass(frozen=True)
class Table:
    """A caption, headers and rows of text."""

    caption: str
    headers: list[str]
    rows: list[list[str]]

    def __str__(self) -> str:
        """Lines for the terminal."""
        return "\n".join([self.caption, "", *plain(self)])

    @property
    def numeric(self) -> list[bool]:
        """Whether a column holds numbers, to align right; the first column is text."""
        places = range(len(self.headers))
        return [p > 0 and all(_NUMBER.match(row[p]) for row in self.rows) for p in places]

    def columns(self, *places: int, caption: str) -> Table:
        """Return some of the columns under another caption."""
        return Table(
            caption,
            [self.headers[place] for place in places],
            [[row[place] for place in places] for row in self.rows],
        )


@dataclass(frozen=True)
class Report:
    """Result of a `report` command: the page, and the sentences and tables to print."""

    path: Path
    parts: list[str | Table]

    def __str__(self) -> str:
        return "\n".join([*(f"{part}\n" for part in self.parts), f"report: {self.path}"])


def plain(table: Table) -> list[str]:
    """Render the table as terminal lines, numbers aligned right."""
    lines = [table.headers, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "   ".join(
            [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))]
        ).rstrip()
        for first, *rest in lines
    ]


def markdown(table: Table) -> list[str]:
    """Render the table as Markdown lines under its caption."""
    lines = [text.markdown(table.caption), ""] if table.caption else []
    head, *rows = (
        f"| {' | '.join(map(text.markdown, row))} |" for row in (table.headers, *table.rows)
    )
    rule = "|".join(["", *(" ---: " if right else " --- " for right in table.numeric), ""])
    return [*lines, head, rule, *rows, ""]

"""Tables of text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.report import text


@dataclass(frozen=True)
class Table:
    """A caption, headers and rows of text; `words` where the cells are no numbers."""

    caption: str
    headers: list[str]
    rows: list[list[str]]
    words: bool = False

    def columns(self, *places: int, caption: str) -> Table:
        """Those at the places alone, under a caption of their own."""
        return Table(
            caption,
            [self.headers[place] for place in places],
            [[row[place] for place in places] for row in self.rows],
        )


@dataclass(frozen=True)
class Report:
    """What a command `report` has made: its page, and the tables that the terminal shows too."""

    path: Path
    tables: list[Table]

    def __str__(self) -> str:
        shown = ["\n".join([table.caption, "", *plain(table), ""]) for table in self.tables]
        return "\n".join([*shown, f"report: {self.path}"])


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
    lines = [text.markdown(table.caption), ""] if table.caption else []
    for place, row in enumerate([table.headers, *table.rows]):
        lines.append(f"| {' | '.join(map(text.markdown, row))} |")
        if place == 0:
            lines.append("|" + " --- |" * len(row))
    return [*lines, ""]

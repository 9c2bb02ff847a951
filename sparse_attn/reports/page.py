"""Pages of reports: a list of blocks, rendered as Markdown and as self-contained HTML."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from sparse_attn.reports import canvas, text
from sparse_attn.reports.table import Report, Table, markdown
from sparse_attn.system.files import make_folder, write_text

__all__ = ["Block", "Bullets", "Heading", "Page", "Plot", "Report", "Status", "Table"]


@dataclass(frozen=True)
class Heading:
    """A heading of level 2 or deeper."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Status:
    """A highlighted sentence, such as what is missing; the terminal shows it too."""

    text: str


@dataclass(frozen=True)
class Plot:
    """A figure with its file name, title and caption."""

    name: str
    title: str
    caption: str
    figure: Figure


Block = str | Heading | Bullets | Status | Table | Plot


@dataclass(frozen=True)
class Page:
    """Page of a report.

    Attributes:
        title: title of the page.
        blocks: blocks in order; a string is a paragraph of plain text.
        overview: tables to print in the terminal.
        beside: additional files, by name.
    """

    title: str
    blocks: Sequence[Block]
    overview: Sequence[Table]
    beside: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Report:
        """Write report.html, report.md with its figures, and the additional files."""
        make_folder(folder)
        for block in self.blocks:
            if isinstance(block, Plot):
                canvas.save(block.figure, folder / f"{block.name}.png")
        for name, content in {**self.beside, "report.md": self.markdown()}.items():
            write_text(folder / name, content)
        path = folder / "report.html"
        write_text(path, self._html(folder))
        status = [block.text for block in self.blocks if isinstance(block, Status)]
        # because names of mappings and sweeps have hyphens
        status_lines = [fill(words, 100, break_on_hyphens=False) for words in status]
        return Report(path, [*status_lines, *self.overview])

    def markdown(self) -> str:
        """Render the page as Markdown, with figures as separate files."""
        parts = [f"# {text.markdown(self.title)}", *map(_markdown, self.blocks)]
        return "\n\n".join(parts) + "\n"

    def _html(self, folder: Path) -> str:
        """Render the page as one HTML file with the figures that `write` saved in the folder."""

        def image(plot: Plot) -> str:
            content = base64.b64encode((folder / f"{plot.name}.png").read_bytes())
            return f"data:image/png;base64,{content.decode('ascii')}"

        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            undefined=StrictUndefined,
        )
        environment.filters |= {
            "image": image,
            "kind": lambda block: type(block).__name__,
            "unbroken": text.unbroken,
        }
        return environment.get_template("page.html.j2").render(page=self)


def _markdown(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {text.markdown(block.text)}"
        case Bullets():
            return "\n".join(f"- {text.markdown(line)}" for line in block.lines)
        case Status():
            return f"**{text.markdown(block.text)}**"
        case Table():
            return "\n".join(markdown(block)).strip()
        case Plot():
            caption = f"\n\n{text.markdown(block.caption)}" if block.caption else ""
            return f"![{text.markdown(block.title)}]({quote(block.name)}.png){caption}"
    return text.markdown(block)

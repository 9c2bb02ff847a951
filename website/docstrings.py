"""Conversion of docstrings to Markdown for the API pages.

Docstrings are plain text with code in backticks, for readers of the source. Formulas and shapes in
them, such as `|y|_1`, `<p, z>` and `shape [heads]`, would be taken for Markdown and HTML.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import (
    DocstringSectionText,
    Extension,
    Module,
    Object,
)

# fenced, indented after an empty line, or within a line
_CODE = re.compile(r"(```.*?```|(?<=\n\n)(?: {4}[^\n]*(?:\n+|\Z))+|`[^`]+`)", re.DOTALL)


class PlainText(Extension):
    """Extension that escapes the docstrings of the library once all of it is loaded."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        _walk(pkg)


def _walk(found: Object) -> None:
    if found.docstring is not None:
        for place, section in enumerate(found.docstring.parsed):
            if isinstance(section, DocstringSectionText):
                section.value = _summary(section.value) if place == 0 else plain(section.value)
            elif isinstance(section.value, list):
                for item in section.value:
                    item.description = plain(item.description)
    for member in found.members.values():
        if isinstance(member, Object):
            _walk(member)


def _summary(text: str) -> str:
    """Return the text, with the first paragraph as code if it is a formula."""
    first, blank, rest = text.partition("\n\n")
    if " = " in first and "`" not in first:
        formula = " ".join(first.split()).removesuffix(".")
        return f"`{formula}`{blank}{plain(rest)}"
    return plain(text)


def plain(text: str) -> str:
    """Return the text in Markdown; code is not changed, a source begins a paragraph."""
    parts = _CODE.split(re.sub(r"\n(?=Source: )", "\n\n", text))
    parts[::2] = (
        re.sub(r"([\\*_\[\]])", r"\\\1", part).replace("&", "&amp;").replace("<", "&lt;")
        for part in parts[::2]
    )
    return "".join(parts)

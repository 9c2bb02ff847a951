"""Replace the markers of a page, which are HTML comments that other renderers hide.

    <!-- site: curves softmax sparsemax -->      the picture of draw_curves
    <!-- site: simplex r-softmax -->             the picture of draw_simplex
    <!-- site: saved zeros.svg What it shows --> a picture that the page's own code saves

A marker fills a whole line.
"""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Iterator
from functools import cache, partial

from sparse_attn.inspection.pictures import draw_curves, draw_simplex
from website import code

_MARKER = re.compile(r"^<!-- site: (\w+) ?(.*?) -->$", re.MULTILINE)
_FOLDER = "pictures"
_DRAWN = {"curves": "p of the scores (z, 0) by z", "simplex": "scores and where p puts them"}


def fill(markdown: str, page: str) -> str:
    """Return the text of a page, at path `page` under docs/, with its markers replaced.

    Raises:
        ValueError: an unknown marker.
    """
    return _MARKER.sub(partial(_text, page=page), markdown)


def pictures(markdown: str, page: str) -> Iterator[tuple[str, bytes]]:
    """Yield path on the site and content of every picture that a page has markers for.

    Raises:
        ValueError: an unknown mapping, or a file that the page's code does not save.
        RuntimeError: the page's code fails.
    """
    for kind, argument in _MARKER.findall(markdown):
        if kind in _DRAWN:
            yield _path(kind, argument, page), _draw(kind, argument)
        elif kind == "saved":
            yield _path(kind, argument, page), _saved(markdown, argument.split()[0])


def _text(marker: re.Match[str], page: str) -> str:
    kind, argument = marker.groups()
    if kind not in (*_DRAWN, "saved"):
        raise ValueError(f"{page}: unknown marker {marker[0]}; website/pages.py lists them")
    meaning = f"{argument}: {_DRAWN[kind]}" if kind in _DRAWN else argument.partition(" ")[2]
    path = posixpath.relpath(_path(kind, argument, page), posixpath.dirname(page) or ".")
    return f"![{meaning}]({path})"


def _path(kind: str, argument: str, page: str) -> str:
    if kind == "saved":
        return f"{_FOLDER}/{page.removesuffix('.md').replace('/', '-')}-{argument.split()[0]}"
    suffix = "svg" if kind == "curves" else "png"
    return f"{_FOLDER}/{kind}-{argument.replace(' ', '-')}.{suffix}"


@cache
def _draw(kind: str, argument: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "curves":
        draw_curves(argument.split()).savefig(buffer, format="svg")
    else:
        # an SVG would store thousands of points one by one
        draw_simplex(argument).savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _saved(markdown: str, name: str) -> bytes:
    found = code.saved(code.python(markdown))
    if name not in found:
        raise ValueError(f"{name}: the page's code saves no such file, but {', '.join(found)}")
    return found[name]

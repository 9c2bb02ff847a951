"""Where the files of the repository stand on the site, and links between them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import partial

from website import ROOT

# of the repository, and of the site: paths under docs/, whose pages become .html
_MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[)#])")


def added() -> Iterator[tuple[str, str]]:
    """Files that are not in docs/, or not under their name: in the repository, on the site."""
    yield from list(_MOVED.items())[1:]
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in (".md", ".png"):
            source = path.relative_to(ROOT).as_posix()
            yield source, source


def on_site(source: str) -> str:
    """The place of a file; a folder of records is where results.md speaks of it."""
    if source in _MOVED:
        return _MOVED[source]
    if source.startswith("results/") and (ROOT / source).is_dir():
        return "results.md"
    return source.removeprefix("docs/")


def relink(markdown: str, source: str) -> str:
    """The text of a file of the repository with its links as they are on the site."""
    return _LINK.sub(partial(_moved, source=source), markdown)


def _moved(link: re.Match[str], source: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[0]))
    return posixpath.relpath(on_site(target), posixpath.dirname(on_site(source)) or ".")

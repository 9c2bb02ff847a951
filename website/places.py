"""Paths of the repository's files on the site, and links between them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import partial

from website import ROOT

# path in the repository -> path on the site, relative to docs/
_MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[)#])")


def added() -> Iterator[tuple[str, str]]:
    """Yield repository path and site path of the files that the site adds to docs/."""
    yield from list(_MOVED.items())[1:]
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in (".md", ".png", ".csv"):
            source = path.relative_to(ROOT).as_posix()
            yield source, source


def on_site(source: str) -> str:
    """Return the site path of a file; a folder of records is described in results.md."""
    if source in _MOVED:
        return _MOVED[source]
    if source.startswith("results/") and (ROOT / source).is_dir():
        return "results.md"
    return source.removeprefix("docs/")


def relink(markdown: str, source: str) -> str:
    """Return the text of a file of the repository with links changed to those of the site."""
    return _LINK.sub(partial(_moved, source=source), markdown)


def _moved(link: re.Match[str], source: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[0]))
    return posixpath.relpath(on_site(target), posixpath.dirname(on_site(source)) or ".")


def boost(site: str) -> float:
    """Return the weight of a page in the search: first how to, then what was measured."""
    if site.startswith(("quickstart", "tutorials/", "adding-a-mapping")):
        return 4
    looked_up = ("api/", "results/", "architecture", "changelog", "decisions")
    return 0.25 if site.startswith(looked_up) or site.endswith("/report.md") else 1

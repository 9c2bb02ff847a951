"""The site builds without a warning, as of a link that leads nowhere, and needs no network."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

import sparse_attn
from sparse_attn import functional, heads, inspection, kernels, losses
from sparse_attn.inspection import pictures

ROOT = Path(__file__).parents[2]
PUBLIC = (sparse_attn, functional, heads, losses, kernels, inspection, pictures)
# attributes by which a browser loads something, and elements whose `href` does so
LOADING = ("src", "srcset", "data", "poster")
LOADERS = ("link", "use", "image")


class Page(HTMLParser):
    """What can be pointed at, and what is loaded."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.headings = 0
        self.title = ""
        self._in_title = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        self.headings += tag == "h1"
        self._in_title = tag == "title"
        self.loaded += [found[name] for name in LOADING if name in found]
        if "href" in found and tag in LOADERS:
            self.loaded.append(found["href"])

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
            self._in_title = False


def build(folder: Path) -> dict[str, Page]:
    """The pages of the site by their path in it; fails where there is a warning."""
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    build_site(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return {
        path.relative_to(folder).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in folder.rglob("*.html")
    }


def from_elsewhere(folder: Path, pages: dict[str, Page]) -> Iterator[str]:
    for place, page in pages.items():
        for source in page.loaded:
            url = urlsplit(source)
            if (url.scheme and url.scheme != "data") or url.netloc:
                yield f"{place}: {source}"
    for path in folder.rglob("*.css"):
        for source in re.findall(r"url\(([^)]*)\)|@import ([^;]*)", path.read_text()):
            if re.match(r"""["']?(https?:)?//""", "".join(source)):
                yield f"{path.name}: {''.join(source)}"


def not_documented(pages: dict[str, Page]) -> Iterator[str]:
    known = set().union(*(page.ids for place, page in pages.items() if place.startswith("api/")))
    for module in PUBLIC:
        names = [n for n in module.__all__ if not isinstance(getattr(module, n), ModuleType)]
        yield from {f"{module.__name__}.{name}" for name in names} - known


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Page]]:
    """The folder of the site and its pages."""
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python", "latex2mathml"):
        pytest.importorskip(package, reason="the site needs pip install '.[docs]'")
    folder: Path = tmp_path_factory.mktemp("site")
    return folder, build(folder)


@pytest.mark.slow
def test_site(site: tuple[Path, dict[str, Page]]) -> None:
    folder, pages = site
    assert not list(from_elsewhere(folder, pages))
    assert not list(not_documented(pages))
    assert not [place for place, page in pages.items() if not page.title.strip()]
    assert not [place for place, page in pages.items() if page.headings != 1]
    assert not [place for place in pages if "<!-- site:" in (folder / place).read_text()]
    # formulas of pages are typeset, those of docstrings shown as they stand
    assert not [place for place in pages if "arithmatex" in (folder / place).read_text()]
    assert "<msub><mi>p</mi><mi>i</mi></msub>" in (folder / "guide/mappings.html").read_text()
    assert "|eta|^2 / 2" in (folder / "api/losses.html").read_text()
    assert "&lt;eta, z&gt;" in (folder / "api/losses.html").read_text()
    index = json.loads((folder / "search/search_index.json").read_text())
    assert "sparse_attn.losses.sparsemax_loss" in str(
        [entry["location"] for entry in index["docs"]]
    )

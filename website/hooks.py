"""MkDocs hooks that change docs/ into the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

# MkDocs loads this file by its path and from any folder
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from website import ROOT, formulas, pages, places

_SOURCES = {site: source for source, site in places.added()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that are not in docs/: changelog, records, pictures."""
    for site, source in _SOURCES.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / source)))
    for page in files.documentation_pages():
        for path, content in pages.pictures(page.content_string, page.src_uri):
            if files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return the page with links of the site and replaced markers; set its rank in the search."""
    site = page.file.src_uri
    source = _SOURCES.get(site, f"docs/{site}")
    page.meta["search"] = {"boost": places.boost(site)}
    return pages.fill(places.relink(markdown, source), site)


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with typeset formulas."""
    return formulas.typeset(html)

"""Additions of `make docs` to docs/: tables from the records, pictures, API pages.

Only `hooks` depends on the site generator, and `docstrings` on its reader of docstrings; the rest
makes Markdown, SVG and PNG.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

"""What `make docs` adds to docs/: tables from the records, pictures, API pages.

Only `hooks` knows the site generator, and `docstrings` what reads docstrings for it; the rest makes
Markdown, SVG and PNG.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

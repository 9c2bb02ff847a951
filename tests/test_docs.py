"""The code in the README and the docs runs as written, and their links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparse_attn import mapping_names
from sparse_attn.mappings import get_spec

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def code(page: Path) -> str:
    return "\n".join(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    )


@pytest.mark.parametrize("page", [p for p in PAGES if code(p)], ids=lambda path: path.name)
def test_code_runs(page: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code(page)],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    if page.name == "README.md":
        # floor(0.15 * 6) + 1 of the 7 tokens
        assert "exact zeros: 14% of layer 1" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_readme_lists_every_mapping() -> None:
    table = (ROOT / "README.md").read_text()
    # the experiments, which other tests of this process import, register one of their own
    library = {n for n in mapping_names() if get_spec(n).function.__module__[:11] == "sparse_attn"}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == library

"""Fenced code blocks of a page, and the files that its Python code saves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

_FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


def blocks(markdown: str) -> Iterator[tuple[str, str, int]]:
    """Yield language ("" for none), code and first line number of every fenced block."""
    for found in _FENCE.finditer(markdown):
        yield found[2], dedent(found[3]), markdown.count("\n", 0, found.start(3)) + 1


def python(markdown: str) -> str:
    """Return the Python code of a page as one program with the page's line numbers.

    A block that begins with an import from bertviz is left out if that is not installed, because it
    has many dependencies and nothing else needs it.
    """
    program = ""
    for language, code, line in blocks(markdown):
        if language == "python" and (find_spec("bertviz") or not code.startswith("from bertviz ")):
            program += "\n" * (line - 1 - program.count("\n")) + code
    return program


@cache
def saved(program: str) -> dict[str, bytes]:
    """Run a program in an empty folder without network; return the files that it saves, by name.

    Raises:
        RuntimeError: the program fails.
        TimeoutExpired: the program takes ten minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode:
            raise RuntimeError(f"the page's code fails:\n{done.stderr}")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}

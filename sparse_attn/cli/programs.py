"""Programs that need a clone, because they are not in the wheel."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from sparse_attn.cli.errors import refuse

PROGRAMS = {
    "glue": "glue",
    "images": "experiments.images",
    "multilabel": "experiments.multilabel",
    "language-modeling": "experiments.language_modeling",
    "bottleneck": "experiments.bottleneck",
    "conversion": "experiments.conversion",
    "demo": "experiments.demo",
    "benchmarks": "benchmarks",
}

ROOT = Path(__file__).resolve().parents[2]  # of the clone


def command_of(module: str) -> str:
    """Return what starts a program in the working directory, which may be outside the clone."""
    if Path.cwd() == ROOT:
        return f"python -m {module}"
    return f"sparse-attn {next(name for name, found in PROGRAMS.items() if found == module)}"


def run_program(name: str, *arguments: str) -> NoReturn:
    """Replace this process by `python -m` of the program's module.

    Exits with 2 and one line outside a clone, or if the program's packages are missing.
    """
    module = PROGRAMS[name]
    # site-packages may hold other packages of the same names
    ours = (ROOT / "pyproject.toml").exists() and (ROOT / "engine").is_dir()
    if not ours:
        refuse(f"{name}: only in a clone of the repository; pip install -e '.[demo]' there")
    if find_spec("jsonargparse") is None:
        refuse(f"{name}: jsonargparse is not installed; pip install -e '.[demo]'")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.execve(
        sys.executable,
        # -P: modules of the working directory must not shadow ours
        [sys.executable, "-P", "-m", module, *arguments],
        {**os.environ, "PYTHONPATH": path},
    )

"""Programs that need a clone, because they are not in the wheel."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from sparse_attn.cli.errors import refuse
from sparse_attn.system.paths import ROOT, in_clone

PROGRAMS = {
    "glue": "glue",
    "images": "experiments.images",
    "multilabel": "experiments.multilabel",
    "language-modeling": "experiments.language_modeling",
    "bottleneck": "experiments.bottleneck",
    "length": "experiments.length",
    "benchmarks": "benchmarks",
}


def command_of(module: str) -> str:
    """Return what starts a program in any working directory."""
    return f"sparse-attn {next(name for name, found in PROGRAMS.items() if found == module)}"


def run_program(name: str, *arguments: str) -> NoReturn:
    """Replace this process by `python -m` of the program's module.

    Exits with 2 and one line outside a clone.
    """
    module = PROGRAMS[name]
    if not in_clone():
        refuse(f"{name}: only in a clone of the repository; pip install -e '.[demo]' there")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.execve(
        sys.executable,
        # -P: modules of the working directory must not shadow ours
        [sys.executable, "-P", "-m", module, *arguments],
        {**os.environ, "PYTHONPATH": path},
    )

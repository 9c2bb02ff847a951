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


def run_program(name: str, *arguments: str) -> NoReturn:
    """Replace this process by `python -m` of the program's module.

    Exits with 2 and one line outside a clone, or if the program's packages are missing.
    """
    root, module = Path(__file__).parents[2], PROGRAMS[name]
    # site-packages may hold other packages of the same names
    ours = (root / "pyproject.toml").exists() and (root / "engine").is_dir()
    if not ours:
        refuse(f"{name}: only in a clone of the repository; pip install -e '.[demo]' there")
    if find_spec("jsonargparse") is None:
        refuse(f"{name}: jsonargparse is not installed; pip install -e '.[demo]'")
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    os.execve(
        sys.executable,
        # -P: modules of the working directory must not shadow ours
        [sys.executable, "-P", "-m", module, *arguments],
        {**os.environ, "PYTHONPATH": path},
    )

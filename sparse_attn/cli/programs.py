"""The programs that `sparse-attn NAME` starts; all but glue need a clone."""

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


def run_program(name: str, *arguments: str) -> NoReturn:
    """Replace this process by `python -m` of the program's module.

    Exits with 2 and one line if the program needs a clone.
    """
    module, environment = PROGRAMS[name], dict(os.environ)
    if in_clone():
        path = filter(None, [str(ROOT), environment.get("PYTHONPATH")])
        environment["PYTHONPATH"] = os.pathsep.join(path)
    elif name == "glue":
        module = "sparse_attn.glue"
    else:
        refuse(f"{name}: only in a clone of the repository; pip install -e '.[demo]' there")
    # -P: modules of the working directory must not shadow ours
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], environment)

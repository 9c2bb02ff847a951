"""`python -m tests.trust.killed PATTERN PROGRAM ARGUMENTS`: a command that is killed.

It ends as it opens for writing the first file whose path PATTERN, a regular expression, matches.
"""

import importlib
import os
import re
import signal
import sys
from typing import Any

from sparse_attn.engine.sweep import run
from tests.engine.sweep.inline import Inline


def kill_at(pattern: str) -> None:
    """Kill this process at the first write to such a path."""

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(args[0], str):
            return
        path, _, flags = args
        if flags & (os.O_WRONLY | os.O_RDWR) and re.search(pattern, path):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


if __name__ == "__main__":
    _, where, program, *arguments = sys.argv
    kill_at(where)
    run.make_pool = Inline  # type: ignore[assignment]  # a sweep needs no processes to be killed
    importlib.import_module(program).main(arguments)

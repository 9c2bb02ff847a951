"""Runs the Python of pages, each in a child of one process that has imported what all of them need.

Reads JSON from stdin, {page: program}, and writes {page: [exit status, stdout, stderr]}.
"""

import json
import os
import sys
import tempfile
import traceback
import types
from pathlib import Path

import transformers.trainer  # noqa: F401
from transformers import AutoModel, AutoTokenizer  # noqa: F401

import sparse_attn.inspection  # noqa: F401


def run(page: str, program: str) -> None:
    """As `python -c` would; errors name the lines of the page."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(program, page, "exec"), module.__dict__)


def in_child(page: str, program: str) -> tuple[int, str, str]:
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdout", "stderr")]
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for number, stream in enumerate(streams, start=1):
                    os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
                os.chdir(tempfile.mkdtemp(dir=folder))
                run(page, program)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), *(s.read_text() for s in streams)


if __name__ == "__main__":
    programs = json.load(sys.stdin)
    # what is written to it before a fork would be written by every child too
    sys.stdout.flush()
    json.dump({page: in_child(page, program) for page, program in programs.items()}, sys.stdout)

"""How the tests run a command line: in this process, or in one of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def python(*arguments: Any, env: dict[str, str] | None = None, **options: Any) -> str:
    """What `python ARGUMENTS` prints, in the root unless `cwd` says otherwise.

    Args:
        *arguments: such as "-m", "glue", "train", or "-c" and a program.
        env: on top of the environment of the tests.
        **options: of `subprocess.run`.
    """
    done = run(*arguments, env=env, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(
    *arguments: Any, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """As `python`, whatever comes of it."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        **{"cwd": ROOT, "capture_output": True, "text": True, **options},
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(env or {})},
    )


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[Any]) -> Any:
    """What `condition` gives once that is true; an error if the process ends before."""
    deadline = time.monotonic() + 240
    while not (found := condition()):
        assert process.poll() is None, "the process ended before"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def refusal(
    main: Callable[[list[str]], Any],
    capsys: pytest.CaptureFixture[str],
    *arguments: Any,
    code: int = 2,
) -> str:
    """The one line, and no traceback, with which `main` ends for these arguments."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code == code
    told = capsys.readouterr().err
    assert told.startswith("error: "), told
    assert told.strip().count("\n") == 0, told
    return told.strip()

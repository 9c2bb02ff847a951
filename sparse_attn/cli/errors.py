"""Exit codes of every command: 1 for failed work, 2 for wrong input, 130 for Ctrl+C."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from sparse_attn.system.paths import in_clone

# modules and the extra of this project that installs them
EXTRAS = {
    **dict.fromkeys(("jinja2", "matplotlib", "scipy", "sklearn"), "report"),
    **dict.fromkeys(("datasets", "evaluate", "yaml", "jsonargparse", "accelerate"), "report"),
    **{"ray": "ray", "PIL": "images", "torchvision": "images"},
}
INTERRUPTED = 130  # 128 + SIGINT, as in shells


@contextmanager
def work_errors(then: str = "") -> Iterator[None]:
    """Turn a training that diverged or a full disk into one line and exit code 1.

    Args:
        then: how to repeat the command after the disk was full.
    """
    try:
        yield
    except FloatingPointError as error:
        refuse(str(error), 1)
    except OSError as error:
        # imported here, because it imports torch
        from sparse_attn.system.files import UnwrittenError

        if not isinstance(error, UnwrittenError) or isinstance(error, FileNotFoundError):
            raise
        refuse(str(error) + then, 1)


@contextmanager
def input_errors(*further: type[Exception]) -> Iterator[None]:
    """Turn wrong input or a missing extra into one line and exit code 2; also `work_errors`."""
    expected: tuple[type[Exception], ...] = (ValueError, TypeError, OSError, *further)
    try:
        with work_errors():
            yield
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        extra = f"'sparse-attn[{EXTRAS[error.name]}]'"
        if in_clone():  # whose programs need all of the demo
            extra = f"-e {extra}".replace("sparse-attn", ".").replace("report", "demo")
        refuse(f"{error.name} is not installed; pip install {extra}")
    except expected as error:
        said = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            said = f"{error.filename}: {error.strerror}"
        refuse(said)


def refuse(reason: str, code: int = 2) -> NoReturn:
    """Print one line and exit."""
    print("error:", " ".join(reason.split()), file=sys.stderr)
    raise SystemExit(code) from None


@contextmanager
def interruption(then: str = "run the same command to continue") -> Iterator[None]:
    """Turn Ctrl+C into one line and exit code 130, without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {then}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None

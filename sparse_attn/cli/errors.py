"""What every command does with wrong input, a missing package and Ctrl+C."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

# modules that an extra of this project installs
EXTRAS = {
    **dict.fromkeys(("statsmodels", "jinja2", "matplotlib", "scipy", "sklearn"), "report"),
    **dict.fromkeys(("datasets", "evaluate", "yaml", "jsonargparse", "accelerate"), "report"),
    **{"ray": "ray", "PIL": "images", "torchvision": "images"},
}
INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it


@contextmanager
def input_errors(*further: type[Exception]) -> Iterator[None]:
    """One line and exit code 2 instead of a traceback for wrong input or a missing extra."""
    expected: tuple[type[Exception], ...] = (
        ValueError,
        TypeError,
        OSError,
        FloatingPointError,
        *further,
    )
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        extra = EXTRAS[error.name]
        _refuse(f"{error.name} is not installed; pip install 'sparse-attn[{extra}]'")
    except expected as error:
        _refuse(" ".join(str(error).split()))


def _refuse(reason: str) -> NoReturn:
    print("error:", reason, file=sys.stderr)
    raise SystemExit(2) from None


@contextmanager
def interruption(
    then: str = "run the same command to continue (train: with --resume)",
) -> Iterator[None]:
    """One line and exit code 130 instead of a traceback for Ctrl+C."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {then}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None

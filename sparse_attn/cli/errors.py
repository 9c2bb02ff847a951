"""Handling of wrong input, a missing package and Ctrl+C in every command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

# modules and the extra of this project that installs them
EXTRAS = {
    **dict.fromkeys(("statsmodels", "jinja2", "matplotlib", "scipy", "sklearn"), "report"),
    **dict.fromkeys(("datasets", "evaluate", "yaml", "jsonargparse", "accelerate"), "report"),
    **{"ray": "ray", "PIL": "images", "torchvision": "images"},
}
INTERRUPTED = 130  # 128 + SIGINT, as in shells


@contextmanager
def input_errors(*further: type[Exception]) -> Iterator[None]:
    """Turn wrong input or a missing extra into one line and exit code 2, without a traceback."""
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
        refuse(f"{error.name} is not installed; pip install 'sparse-attn[{extra}]'")
    except expected as error:
        refuse(" ".join(str(error).split()))


def refuse(reason: str) -> NoReturn:
    """Print one line and exit with 2."""
    print("error:", reason, file=sys.stderr)
    raise SystemExit(2) from None


@contextmanager
def interruption(
    then: str = "run the same command to continue (train: with --resume)",
) -> Iterator[None]:
    """Turn Ctrl+C into one line and exit code 130, without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {then}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None

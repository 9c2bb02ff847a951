"""What a command does with wrong input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def input_errors(*further: type[Exception]) -> Iterator[None]:
    """One line on stderr and exit code 2 instead of a traceback."""
    expected: tuple[type[Exception], ...] = (ValueError, TypeError, OSError, *further)
    try:
        yield
    except expected as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(2) from None

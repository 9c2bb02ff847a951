"""Files that are whole or not there."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRAFT = ".tmp"


class UnwrittenError(OSError):
    """A file could not be written, such as on a full disk."""


def reason(path: Path, error: Exception) -> str:
    """What stood in the way of `path`, and what to do."""
    return (
        f"{path}: could not be written ({error}); what was written before is safe: put that right, "
        "such as by making room, and the same command goes on"
    )


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A draft to write to that takes the place of `path` if the block ends well, and else goes.

    Neither a kill nor a power cut leaves half a file at `path`. A draft that a killed process has
    left is removed, so that only one process at a time may write to a path.

    Raises:
        UnwrittenError: the block raised OSError; what was at `path` before is there.
    """
    for left in path.parent.glob(f"{glob.escape(path.stem)}.[0-9]*{DRAFT}"):
        left.unlink(missing_ok=True)
    draft = path.with_suffix(f".{os.getpid()}{DRAFT}")
    try:
        yield draft
        # without it some file systems rename before the bytes are on the disk
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except UnwrittenError:
        raise
    except OSError as error:
        raise UnwrittenError(reason(path, error)) from error
    finally:
        # what a full disk has cut short
        draft.unlink(missing_ok=True)

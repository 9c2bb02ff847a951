"""Atomic file writes."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DRAFT = ".tmp"


class UnwrittenError(OSError):
    """A file could not be written, such as on a full disk."""


def reason(path: Path, error: Exception) -> str:
    """What went wrong with `path`, and what to do."""
    return (
        f"{path}: could not be written ({error}); files already written are intact: fix the "
        "cause, for example by freeing disk space, and repeat the command to continue"
    )


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A draft to write to, which replaces `path` if the block succeeds and is removed if not.

    Neither a kill nor a power cut leaves half a file at `path`. Drafts left by killed processes are
    removed, so only one process at a time may write to a path. A replaced file keeps its
    permissions.

    Raises:
        UnwrittenError: its folder is missing, or the block raised OSError; `path` is unchanged.
    """
    if not path.parent.is_dir():
        raise UnwrittenError(f"{path}: there is no folder {path.parent}; create it first")
    draft = beside(path, DRAFT)
    try:
        remove_beside(path, DRAFT)
        yield draft
        # without it some file systems rename before the bytes are on the disk
        sync(draft)
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, draft)
        draft.replace(path)
    except UnwrittenError:
        raise
    except OSError as error:
        raise UnwrittenError(reason(path, error)) from error
    finally:
        # what a full disk has cut short; the error that says so is raised already
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def beside(path: Path, suffix: str) -> Path:
    """A new name in the folder of `path`, of its name, a token and the suffix."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{suffix}")


def remove_beside(path: Path, suffix: str, keep: Path | None = None) -> None:
    """Remove the files that `beside` has named, but for one."""
    name = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}" + re.escape(suffix))
    for left in path.parent.iterdir():
        if left != keep and name.fullmatch(left.name):
            left.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until the bytes of a file are on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())

"""Files that are whole or not there, JSON among them, and what two contents differ in."""

from __future__ import annotations

import errno
import glob
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

_DRAFT = ".tmp"
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# safetensors and tokenizers put the system's words into errors of their own; torch.save, which
# writes a path by C++, says no more than that a stream failed
_WORDS = (*map(os.strerror, _DISK), "iostream")


class UnwrittenError(OSError):
    """A file could not be written, such as on a full disk."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A draft to write to that takes the place of `path` if the block ends well, and else goes.

    Neither a kill nor a power cut leaves half a file at `path`. A draft that a killed process has
    left is removed, so that only one process at a time may write to a path.

    Raises:
        UnwrittenError: the block raised OSError; what was at `path` before is there.
    """
    for left in path.parent.glob(f"{glob.escape(path.stem)}.[0-9]*{_DRAFT}"):
        left.unlink(missing_ok=True)
    draft = path.with_suffix(f".{os.getpid()}{_DRAFT}")
    try:
        yield draft
        # without it some file systems rename before the bytes are on the disk
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise _unwritten(path, error) from error
    finally:
        # what a full disk has cut short
        draft.unlink(missing_ok=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Raise `UnwrittenError` about `path` where the block fails for want of room on a disk.

    torch, safetensors and tokenizers each have a way of their own to say so. Other errors, of which
    a training has many kinds, stay what they are.
    """
    try:
        yield
    except Exception as error:
        if not _of_disk(error):
            raise
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: Exception) -> OSError:
    if isinstance(error, UnwrittenError):
        return error
    return UnwrittenError(
        f"{path}: could not be written ({error}); what was written before is safe: put that "
        "right, such as by making room, and the same command goes on (train: with --resume)"
    )


def _of_disk(error: BaseException | None) -> bool:
    """Whether a disk stands behind an error, by its number or its words."""
    while error is not None and not isinstance(error, UnwrittenError):
        by_number = isinstance(error, OSError) and error.errno in _DISK
        if by_number or any(words in str(error) for words in _WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def write_text(path: Path, text: str) -> None:
    """Write whole or not at all; raises as `whole`."""
    with whole(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write whole or not at all, one line for each key: lists of numbers would fill pages."""
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def write_tensors(path: Path, content: Any) -> None:
    """`torch.save`, whole or not at all; raises as `whole`."""
    with whole(path) as draft, draft.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # it says no more than at which byte; what the write has met stands behind it
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def is_free(folder: Path, *own: str) -> bool:
    """Whether a folder holds nothing but what is named in `own`, and drafts of killed processes."""
    if not folder.is_dir():
        return not folder.exists()
    return all(path.name in own or path.suffix == _DRAFT for path in folder.iterdir())


def differences(asked: Any, found: Any, name: str = "") -> list[str]:
    """`key: asked, there found` for every key that differs."""
    if isinstance(asked, dict) and isinstance(found, dict):
        keys = sorted({*asked, *found})
        return [
            text
            for key in keys
            for text in differences(asked.get(key), found.get(key), f"{name}.{key}".lstrip("."))
        ]
    return [] if asked == found else [f"{name}: asked {asked!r}, there {found!r}"]

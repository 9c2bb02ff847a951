"""Atomic writes, disk errors, and differences between configs."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

DRAFT = ".tmp"
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# safetensors and tokenizers wrap the system's message in another error; torch.save, which writes
# through C++, reports only a failed stream
_WORDS = (*map(os.strerror, _DISK), "iostream")


class UnwrittenError(OSError):
    """A file could not be written, such as on a full disk."""


class MissingFolderError(UnwrittenError, FileNotFoundError):
    """The folder of a file does not exist."""


def reason(path: Path, error: Exception) -> str:
    """Say why `path` could not be written, and what to do."""
    if isinstance(error, OSError) and error.errno not in (None, *_DISK):
        return f"{path}: could not be written ({error.strerror}); choose another path"
    return (
        f"{path}: could not be written ({error}); files already written are intact: fix the "
        "cause, for example by freeing disk space, and repeat the command to continue"
    )


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a draft file that replaces `path` if the block succeeds, and is removed if not.

    Neither a kill nor a power cut leaves half a file at `path`. Drafts left by killed processes are
    removed, so only one process at a time may write to a path. A replaced file keeps its
    permissions.

    Raises:
        MissingFolderError: there is no such folder.
        UnwrittenError: the block raised OSError; `path` is unchanged.
    """
    if not path.parent.is_dir():
        raise MissingFolderError(f"{path}: there is no folder {path.parent}; create it first")
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}{DRAFT}")
    try:
        _remove_drafts(path)
        yield draft
        with draft.open("rb+") as file:  # some file systems rename before the bytes are on the disk
            os.fsync(file.fileno())
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, draft)
        draft.replace(path)
    except UnwrittenError:
        raise
    except OSError as error:
        raise UnwrittenError(reason(path, error)) from error
    finally:
        # a full disk, whose error is already being raised
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _remove_drafts(path: Path) -> None:
    """Remove the drafts of `path` that killed processes left."""
    name = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}" + re.escape(DRAFT))
    for left in path.parent.iterdir():
        if name.fullmatch(left.name):
            left.unlink(missing_ok=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise `UnwrittenError` about `path` if the block fails on a full or read-only disk.

    torch, safetensors and tokenizers report this in different ways. Other errors pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if not _of_disk(error):
            raise
        raise UnwrittenError(reason(path, error)) from error


def make_folder(folder: Path) -> None:
    """Make an output folder and its parents.

    Raises:
        MissingFolderError: this path cannot be a folder.
        UnwrittenError: the disk is full or read-only.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kind = UnwrittenError if error.errno in _DISK else MissingFolderError
        raise kind(reason(folder, error)) from error


def _of_disk(error: BaseException | None) -> bool:
    """Whether a full or read-only disk caused an error, by its number or message."""
    while error is not None and not isinstance(error, UnwrittenError):
        by_number = isinstance(error, OSError) and error.errno in _DISK
        if by_number or any(words in str(error) for words in _WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def write_text(path: Path, text: str) -> None:
    """Write a text atomically; raises as `atomic_write`."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON atomically, one line per key, because lists of numbers would fill pages."""
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_json(path: Path, where: str, remedy: str) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: it cannot be read; names `where` and the remedy.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}: {path.name} is not readable ({error}); {remedy}") from None


def write_tensors(path: Path, content: Any) -> None:
    """Call `torch.save` atomically; raises as `atomic_write`."""
    with atomic_write(path) as draft, draft.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # the error gives only the byte; its context has the cause
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def is_free(folder: Path, *own: str) -> bool:
    """Whether a folder holds only the files of `own` and drafts of killed processes."""
    if not folder.is_dir():
        return not folder.exists()
    return all(path.name in own or path.suffix == DRAFT for path in folder.iterdir())


def differences(requested: Any, found: Any, name: str = "") -> list[str]:
    """List every key that differs, with the requested and the found value."""
    if isinstance(requested, dict) and isinstance(found, dict):
        keys = sorted({*requested, *found})
        return [
            text
            for key in keys
            for text in differences(requested.get(key), found.get(key), f"{name}.{key}".lstrip("."))
        ]
    return [] if requested == found else [f"{name}: requested {requested!r}, found {found!r}"]

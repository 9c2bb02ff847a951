"""Atomic writes, disk errors, and differences between configs."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sparse_attn.system.files import DRAFT, UnwrittenError, reason, whole

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# safetensors and tokenizers wrap the system's message in their own errors; torch.save, which writes
# through C++, reports only a failed stream
_WORDS = (*map(os.strerror, _DISK), "iostream")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Raise `UnwrittenError` about `path` if the block fails on a full or read-only disk.

    torch, safetensors and tokenizers report this in different ways. Other errors pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if not _of_disk(error):
            raise
        raise UnwrittenError(reason(path, error)) from error


def _of_disk(error: BaseException | None) -> bool:
    """Whether a disk caused an error, by its number or message."""
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


def read_json(path: Path, where: str, remedy: str) -> Any:
    """What a file holds.

    Raises:
        ValueError: it cannot be read: in `where`, and what to do.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}: {path.name} is not readable ({error}); {remedy}") from None


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
    return all(path.name in own or path.suffix == DRAFT for path in folder.iterdir())


def differences(asked: Any, found: Any, name: str = "") -> list[str]:
    """`key: asked, there found` for every key that differs."""
    if isinstance(asked, dict) and isinstance(found, dict):
        keys = sorted({*asked, *found})
        return [
            text
            for key in keys
            for text in differences(asked.get(key), found.get(key), f"{name}.{key}".lstrip("."))
        ]
    return [] if asked == found else [f"{name}: requested {asked!r}, found {found!r}"]

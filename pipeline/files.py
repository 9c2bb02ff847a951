"""Files that are whole or not there, JSON among them, and what two contents differ in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to write to that takes the place of `path` if the block ends well, and else goes."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        # what a full disk has cut short
        draft.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write whole or not at all, one line for each key: lists of numbers would fill pages."""
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    with whole(path) as draft:
        draft.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


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

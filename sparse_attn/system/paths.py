"""Names out of files that stand for paths."""

from __future__ import annotations

from pathlib import Path


def safe_join(folder: Path, name: str, where: str) -> Path:
    """folder / name, for a name that a file gives.

    Args:
        where: the file and the key that give it, for the error.

    Raises:
        ValueError: it is absolute or goes up, and so may lie outside the folder.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"{where}: {name!r} leaves the folder {folder}; expected a path below it, without .."
        )
    return folder / path

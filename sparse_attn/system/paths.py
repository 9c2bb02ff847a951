"""The clone of this package, and safe paths from names in files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the clone, if this is one


def in_clone() -> bool:
    """Whether this package runs from a clone, whose other packages are not in the wheel."""
    # site-packages may hold other packages of the same names
    return (ROOT / "pyproject.toml").exists() and (ROOT / "engine").is_dir()


def safe_join(folder: Path, name: str, where: str) -> Path:
    """Return folder / name for a name from a file.

    Args:
        where: the file and the key with the name, for the error.

    Raises:
        ValueError: the name is absolute or has "..", so it may lie outside the folder.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"{where}: {name!r} leaves the folder {folder}; expected a path below it, without .."
        )
    return folder / path

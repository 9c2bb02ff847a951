"""The clone of this package and its version, free paths, and safe paths from names in files."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the clone, if this is one


def in_clone() -> bool:
    """Whether this package runs from a clone, whose other packages are not in the wheel."""
    # site-packages may hold other packages of the same names
    return (ROOT / "pyproject.toml").exists() and (ROOT / "glue").is_dir()


def own_version() -> str:
    """Return this project's version, which may run from its sources without being installed."""
    # they would double the time of `import sparse_attn`
    import tomllib
    from importlib import metadata

    try:
        return metadata.version("sparse-attn")
    except metadata.PackageNotFoundError:
        if not in_clone():
            return "unknown"
        file = ROOT / "pyproject.toml"
        return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"])


def unused(path: Path) -> Path:
    """Return the first of name.html, name-2.html, name-3.html, ... that does not exist."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not os.path.lexists(each))


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

"""Modules that `--import` names: those of a user, which register mappings."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

OPTION = "--import"
_names: list[str] = []


def imported() -> tuple[str, ...]:
    """Return the modules that this process has imported for `--import`, as they were named."""
    return tuple(_names)


def import_options(names: Iterable[str]) -> list[str]:
    """Return the options that import these modules, as words of a command line."""
    return [word for name in names for word in (OPTION, name)]


def import_module(name: str) -> None:
    """Import a module by its name, also from the working directory, or a file `FOLDER/NAME.py`.

    Raises:
        ValueError: there is no such module, another one has its name, or its code fails.
    """
    path = Path(name).resolve() if name.endswith(".py") else None
    folder, module = (Path.cwd(), name) if path is None else (path.parent, path.stem)
    beside = (folder / name.replace(".", "/")).with_suffix(".py")
    if path is None and beside.is_file():  # another module of this name would be imported first
        path = beside.resolve()
    if path is not None and not path.is_file():
        raise ValueError(f"{OPTION} {name}: there is no such file")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that no file there shadows an installed module
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"{OPTION} {name}: {_fault(error, module, folder)}") from error
    file = getattr(loaded, "__file__", None) or "a module of Python"
    if path is not None and Path(file).resolve() != path:
        raise ValueError(f"{OPTION} {name}: {module} is also the name of {file}; rename yours")
    if name not in _names:
        _names.append(name)


def _fault(error: Exception, module: str, folder: Path) -> str:
    """Describe the error of an import, with the line of the module that raised it."""
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return f"there is no such module; expected {module}.py in {folder}, or an installed one"
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.name == "<module>"]
    where = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"

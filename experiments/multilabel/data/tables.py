"""Rows of CSV, TSV and JSON-lines files, and which file holds a split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.tables import read_csv, read_json, read_tsv

Row = tuple[str, dict[str, Any]]  # where it stands, for errors, and its values by column

SUFFIXES = (".csv", ".tsv", ".jsonl")


def find_table(folder: Path, name: str) -> Path | None:
    """The one file `name` with a suffix of SUFFIXES in the folder; None if there is none.

    Raises:
        ValueError: there are several.
    """
    found = [path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise ValueError(f"{folder}: expected one file for {name}, got {names}; remove all but one")
    return found[0] if found else None


def missing_table(folder: Path, name: str) -> str:
    """For an error: what was expected in the folder, and what is there."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else None
    found = "no such folder" if names is None else f"a folder with {listed(names, 5) or 'nothing'}"
    return f"expected a file {name}{' or '.join(SUFFIXES)} in {folder}, got {found}"


def read_table(path: Path) -> list[Row]:
    """Every row of a file. All are UTF-8.

    The first line of CSV and TSV names the columns. TSV has no quoting and only a newline ends a
    row; CSV is quoted as usual; JSON-lines hold one object a line, all with the same keys.

    Raises:
        ValueError: a file without rows or with a row that cannot be read, two columns of one name.
    """
    rows = list(_read_objects(path) if path.suffix == ".jsonl" else _read_lines(path))
    if not rows:
        raise ValueError(f"{path}: holds no rows")
    return rows


def require(rows: Sequence[Row], columns: Iterable[str]) -> None:
    """Raise ValueError unless every one of the columns is there."""
    where, first = rows[0]
    for column in columns:
        if column not in first:
            raise ValueError(f"{where}: no column {column!r}; the columns are {', '.join(first)}")


def _read_lines(path: Path) -> Iterator[Row]:
    lines = read_tsv(path) if path.suffix == ".tsv" else read_csv(path)
    _, header = next(lines, (0, []))
    if len(set(header)) < len(header):
        raise ValueError(f"{path}, line 1: two columns have one name: {', '.join(header)}")
    for number, cells in lines:
        where = f"{path}, line {number}"
        if len(cells) != len(header):
            raise ValueError(
                f"{where}: expected {len(header)} columns ({', '.join(header)}), got {len(cells)}"
            )
        yield where, dict(zip(header, cells, strict=True))


def _read_objects(path: Path) -> Iterator[Row]:
    columns: set[str] | None = None
    for where, record in read_json(path):
        if not isinstance(record, dict):
            raise ValueError(f"{where}: expected an object, got {type(record).__name__}")
        if columns is not None and set(record) != columns:
            raise ValueError(
                f"{where}: expected the keys of the first row ({', '.join(sorted(columns))}), got "
                f"{', '.join(record)}"
            )
        columns = set(record)
        yield where, record


def listed(names: Sequence[str], most: int = 20) -> str:
    """The first of many names, for an error."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")

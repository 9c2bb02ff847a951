"""Read CSV, TSV and JSON files row by row, with the position of each row for errors.

`datasets.load_dataset` would change rows: it fills up short ones with blanks, shifts the columns of
long ones, and reads the text "2020-01-01" of a JSON file as a time and a label "2" as a number.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = tuple[str, dict[str, Any]]  # position, for errors, and values by column
SUFFIXES = (".tsv", ".csv", ".json", ".jsonl")
NAMED = 20  # broken rows listed in an error


def read_rows(
    path: Path,
    needed: Collection[str],
    header: Sequence[str] | None = None,
    otherwise: str = "",
    remedy: str = "",
) -> Iterator[Row]:
    """Yield every row of a UTF-8 file; nothing is dropped or guessed.

    .csv is quoted as usual. .tsv has no quoting, and only a newline ends a row. .json and .jsonl
    hold one object per line, or a list of objects.

    Args:
        path: the file.
        needed: required columns, once each.
        header: column names of a table without a header line.
        otherwise: advice about broken rows, besides mending them.
        remedy: advice about a missing column.

    Raises:
        ValueError: names the fault and its position; for broken rows of a table, after the last
            row.
    """
    if path.suffix in (".json", ".jsonl"):
        yield from _objects(path, needed, remedy)
    elif path.suffix in (".csv", ".tsv"):
        rows = _csv(path) if path.suffix == ".csv" else _tsv(path)
        yield from _table(path, rows, needed, header, otherwise, remedy)
    else:
        raise ValueError(f"{path}: expected a file .tsv, .csv, .json or .jsonl")


def require(columns: Collection[str], needed: Collection[str], where: str, remedy: str) -> None:
    """Raise ValueError unless every needed column occurs exactly once."""
    for column in needed:
        if list(columns).count(column) != 1:
            found = "no" if column not in columns else "more than one"
            raise ValueError(
                f"{where}: {found} column {column!r}; the columns are {', '.join(columns)}{remedy}"
            )


def word_of(value: Any) -> str:
    """Return a label as the file spells it; JSON may hold numbers and truth values."""
    return value if isinstance(value, str) else json.dumps(value)


def column_names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names in `premise,hypothesis`, or in a list, whose names may have commas."""
    parts = given.split(",") if isinstance(given, str) else given or ()
    return tuple(part.strip() for part in parts)


def text_of(value: Any, where: str, column: str) -> str:
    """Return the value of a text column; raises ValueError for anything but a string."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: column {column!r} holds {value!r}, expected a string")
    return value


def number_of(value: Any, where: str, column: str) -> float:
    """Return the value of a number column; raises ValueError unless it is a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where}: column {column!r} holds {value!r}, expected a finite number")
    return number


def _objects(path: Path, needed: Collection[str], remedy: str) -> Iterator[Row]:
    for where, record in _json(path):
        if not isinstance(record, dict):
            raise ValueError(f"{where}: expected an object, got {type(record).__name__}")
        require(record, needed, where, remedy)
        yield where, record


def _table(
    path: Path,
    rows: Iterator[tuple[int, list[str]]],
    needed: Collection[str],
    header: Sequence[str] | None,
    otherwise: str,
    remedy: str,
) -> Iterator[Row]:
    if header is None:
        header = next((cells for _, cells in rows), None)
        if header is None:
            return
        require(header, needed, f"{path}, line 1", remedy)
    broken = []
    for number, cells in rows:
        if len(cells) == len(header):
            yield f"{path}, line {number}", dict(zip(header, cells, strict=True))
        else:
            broken.append((number, len(cells)))
    if broken:  # as in the original QQP download: give all that is needed to mend them
        number, got = broken[0]
        numbers = ", ".join(str(number) for number, _ in broken[:NAMED])
        more = f" and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        raise ValueError(
            f"{path}, line {number}: expected {len(header)} columns ({', '.join(header)}), got "
            f"{got}. Broken rows: {len(broken)} (line {numbers}{more}). Rows are never dropped "
            f"silently: get the file again, or fix or delete these lines{otherwise}"
        )


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and cells. No quoting; only a newline ends a row."""
    for number, line in read_lines(path):
        yield number, line.removesuffix("\n").removesuffix("\r").split("\t")


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield first line numbers and cells, quoted as usual; ValueError for a broken quote."""
    reader = csv.reader((line for _, line in read_lines(path)), strict=True)
    start = 1
    try:
        for cells in reader:
            if cells:  # skip blank lines
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {start}: {error}; double any quote inside a field"
        ) from error


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the position and value of each object, one per line or in a list."""
    text = read_text(path)
    if text.lstrip().startswith("["):
        for number, record in enumerate(_parsed(text, path), start=1):
            yield f"{path}, record {number}", record
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}, line {number}", _parsed(line, path, number)


def _parsed(text: str, path: Path, first: int = 1) -> Any:
    """Parse JSON that starts at line `first` of the file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}, line {first + error.lineno - 1}: not JSON ({error.msg}); expected one object "
            "per line, or a list of objects"
        ) from error


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; raises as `read_lines`."""
    return "".join(line for _, line in read_lines(path))


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines. Only a newline ends one: a text may hold U+2028 or U+0085.

    Raises:
        ValueError: the file is not UTF-8; names its line.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start + 1} "
                    "of the line); save the file as UTF-8"
                ) from error

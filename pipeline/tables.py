"""CSV, TSV and JSON files of texts, row by row, each with where it stands for errors."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells. There is no quoting, and only a newline ends a row."""
    for number, line in _lines(path):
        yield number, line.removesuffix("\n").removesuffix("\r").split("\t")


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number of the first line and cells, quoted as usual; ValueError for a broken quote."""
    reader = csv.reader((line for _, line in _lines(path)), strict=True)
    start = 1
    try:
        for cells in reader:
            if cells:  # a blank line between rows is none of them
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {start}: {error}; a quote inside a field is written twice"
        ) from error


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """Where it stands, and what it is, of one object a line or of a list of objects."""
    with path.open("rb") as file:
        is_list = file.read(64).decode("utf-8-sig", errors="ignore").lstrip().startswith("[")
    if is_list:
        try:
            records = json.loads("".join(line for _, line in _lines(path)))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from error
        for number, record in enumerate(records, start=1):
            yield f"{path}, record {number}", record
        return
    for number, line in _lines(path):
        if line.strip():
            try:
                yield f"{path}, line {number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not JSON ({error.msg}); expected one object a line, "
                    "or a list of objects"
                ) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines with their ends. Only a newline ends one: a text may hold U+2028 or U+0085."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start + 1} "
                    "of the line); save the file as UTF-8"
                ) from error

"""A pool without processes, records of runs that never ran, and a disk that is full."""

from __future__ import annotations

import importlib
import json
import resource
import shutil
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparse_attn.engine.sweep.pool import Job
from sparse_attn.engine.sweep.records import FOLDER, PACKED_FILE, Record


class Inline:
    """A pool that runs each command in this process, and notes the folders in `order`."""

    order: list[str]

    def __init__(self, resources: Any) -> None:
        Inline.order = []
        self._ended: list[str] = []

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def has_room(self) -> bool:
        return not self._ended

    def start(self, key: str, job: Job) -> None:
        package, *arguments = job.words[job.words.index("-m") + 1 :]
        self.order.append(job.log.stem.rpartition(".")[0])
        main = importlib.import_module(f"{package}.__main__").main
        with job.log.open("w") as log, redirect_stdout(log), redirect_stderr(log):
            try:
                main(arguments)
            except (Exception, SystemExit):
                traceback.print_exc()
        self._ended.append(key)

    def ended(self) -> list[str]:
        ended, self._ended = self._ended, []
        return ended


def write_record(folder: Path, record: Record) -> None:
    """Add a record to the sweep in a folder, in place of the run's earlier ones."""
    stem = f"{record.task}.{record.mapping}.{record.stage}{record.index}.{record.hash}"
    shutil.rmtree(folder / FOLDER / stem, ignore_errors=True)
    with (folder / PACKED_FILE).open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")


@contextmanager
def full_disk(size: int = 100) -> Iterator[None]:
    """Every file ends after `size` bytes, as if the disk did."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

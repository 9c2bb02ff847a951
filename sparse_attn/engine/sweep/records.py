"""Records of runs: one JSON file or line per run, named by the hash of its config."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparse_attn.cli.programs import command_of
from sparse_attn.system.files import read_json, write_json, write_text

FORMAT = 1
SWEEP_FILE = "sweep.json"
FOLDER = "runs"
IMPORTS = "imports"  # key of sweep.json and results.json: the modules of `--import`
PACKED_FILE = "runs.jsonl"
LOCK_FILE = ".lock"
Stage = Literal["trial", "final", "grid"]


@dataclass(frozen=True)
class Record:
    """The outcome of a run.

    task, mapping: task name and mapping label in the sweep.
    stage, index: trial k, final seed k, or grid point k.
    config: the settings that decide the result, without paths.
    status: finished; diverged (NaN or infinite outputs, which is a result); failed (any other
        error; the run is repeated).
    error: the error with its traceback.
    results: the measurements, including `score`; None unless finished.
    """

    task: str
    mapping: str
    stage: Stage
    index: int
    hash: str
    config: dict[str, Any]
    status: Literal["finished", "diverged", "failed"]
    error: str | None = None
    results: dict[str, Any] | None = None
    format: int = FORMAT

    def __str__(self) -> str:
        return f"{self.task} {self.mapping} {self.stage} {self.index}"

    @property
    def stem(self) -> str:
        """Stem of the file name."""
        return f"{self.task}.{self.mapping}.{self.stage}{self.index}.{self.hash}"

    @property
    def score(self) -> float:
        """`score` of the results, by which trials are chosen; higher is better."""
        if self.results is None:
            raise ValueError(f"{self}: {self.status}")
        return float(self.results["score"])


@dataclass
class Records:
    """All records of a sweep by hash, and the faults of unreadable files."""

    by_hash: dict[str, Record] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def hash_of(config: dict[str, Any]) -> str:
    """Hash of a run's config: twelve hexadecimal digits."""
    text = json.dumps(config, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def identity(config: Any) -> dict[str, Any]:
    """Return the settings that determine the result of a run; equal ones mean the same run.

    They are `config.comparable()`, and the SHA-256 of the file of each user's mapping that these
    name, so that an edited mapping is another run.
    """
    from sparse_attn.evaluation.labelled_files import digest
    from sparse_attn.mappings.registry import file_of

    content: dict[str, Any] = config.comparable()
    files = {name: file for name in _words(content) if (file := file_of(name)) is not None}
    sources = {name: digest(file) for name, file in sorted(files.items())}
    return {**content, "mapping_sha256": sources} if sources else content


def _words(content: Any) -> Iterator[str]:
    """Yield all strings among the values of a JSON object."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict | list | tuple):
        for value in content.values() if isinstance(content, dict) else content:
            yield from _words(value)


def run_hash(mapping: str, config: dict[str, Any]) -> str:
    """Return the hash that names a run's record; two labels of one mapping are two runs."""
    return hash_of({"label": mapping, **config})


def write_record(sweep: Path, record: Record) -> None:
    """Write a record atomically.

    Raises:
        UnwrittenError: for example on a full disk; nothing has changed.
    """
    write_json(sweep / FOLDER / f"{record.stem}.json", asdict(record))


def read_records(sweep: Path) -> Records:
    """Read all records of a sweep's folder; truncated, edited and other versions' are faults.

    A file takes precedence over a packed line of the same run, since it is newer.
    """
    records = Records()
    packed = sweep / PACKED_FILE
    if packed.exists():
        for number, line in enumerate(packed.read_bytes().splitlines(), start=1):
            _add(records, f"{packed.name} line {number}", line)
    for path in sorted((sweep / FOLDER).glob("*.json")):
        try:
            _add(records, path.name, path.read_bytes())
        except OSError as error:
            records.faults.append(f"{path.name}: {error}")
    return records


def read_content(sweep: Path, program: str) -> dict[str, Any]:
    """Return the content of sweep.json.

    Args:
        sweep: folder of the sweep.
        program: module that runs such sweeps, for errors, such as glue.

    Raises:
        ValueError: sweep.json is missing, broken or of another version.
    """
    file = sweep / SWEEP_FILE
    if not file.is_file():
        below = ", ".join(sorted(found.parent.name for found in sweep.glob(f"*/{SWEEP_FILE}")))
        what = f"has no {SWEEP_FILE}" if sweep.is_dir() else "no such folder"
        raise ValueError(
            f"{sweep}: {what}; name the output_dir of a sweep, which `{command_of(program)} sweep` "
            f"writes{f'; sweeps below it: {below}' if below else ''}"
        )
    remedy = (
        "delete that file and start the sweep again with the same config, which keeps finished runs"
    )
    content = read_json(file, str(sweep), remedy)
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise ValueError(
            f"{sweep}: {SWEEP_FILE} has format {version}, but this version reads format {FORMAT}; "
            "make the report with the version that ran the sweep"
        )
    return content


@contextmanager
def locked(sweep: Path, argument: str) -> Iterator[None]:
    """Lock a sweep's folder, the value of `argument`, while the block runs.

    Raises:
        ValueError: another process holds the lock.
    """
    # the lock is released when the process ends, however it ends
    with (sweep / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{argument}={sweep}: another process is running this sweep; wait for it, or stop "
                "it first"
            ) from None
        yield


def pack(sweep: Path) -> Path:
    """Replace the record files, their folder and the lock by a file with a line for each record.

    Returns its path.

    Raises:
        ValueError: a record is unreadable, there is none, or the sweep is running.
    """
    records, packed = read_records(sweep), sweep / PACKED_FILE
    if records.faults:
        raise ValueError(f"results_dir={sweep}: not every record is readable: {records.faults[0]}")
    if not records.by_hash:
        raise ValueError(f"results_dir={sweep}: holds no record of a sweep; name its output_dir")
    lines = [json.dumps(asdict(record)) + "\n" for record in records.by_hash.values()]
    with locked(sweep, "results_dir"):
        write_text(packed, "".join(lines))
        for record in records.by_hash.values():
            (sweep / FOLDER / f"{record.stem}.json").unlink(missing_ok=True)
        (sweep / LOCK_FILE).unlink()
    folder = sweep / FOLDER
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return packed


def _add(records: Records, name: str, text: bytes) -> None:
    try:
        record = _parse(text)
    except ValueError as error:
        records.faults.append(f"{name}: {error}")
    else:
        records.by_hash[record.hash] = record


def _parse(text: bytes) -> Record:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"truncated or corrupt ({error})") from None
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise ValueError(f"has format {version}, but this version reads format {FORMAT}")
    try:
        record = Record(**content)
    except TypeError as error:
        raise ValueError(f"not a record of a run ({error})") from None
    if not isinstance(record.config, dict):
        raise ValueError(f"not a record of a run (config: {record.config!r})")
    expected = run_hash(record.mapping, record.config)
    if record.hash != expected:
        raise ValueError(
            f"its config has hash {expected}, the record says {record.hash}; restore it, or delete "
            "it, so that the sweep runs it again"
        )
    if record.status == "finished" and "score" not in (record.results or {}):
        raise ValueError("not a record of a run (finished, and without a score)")
    return record

"""One JSON file a run, whole or not there, or one line a run; found by the hash of its config."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.files import read_json, write_json, write_text

FORMAT = 1
SWEEP_FILE = "sweep.json"
FOLDER = "runs"
PACKED_FILE = "runs.jsonl"
Stage = Literal["trial", "final", "grid"]


@dataclass(frozen=True)
class Record:
    """What became of a run.

    task, mapping: the task's name and the mapping's label in the sweep.
    stage, index: trial k, final seed k, or point k of a grid.
    config: what decides the run's result, without folders that may differ between machines.
    status: finished; diverged (its outputs are no numbers, which is a result); failed (anything
        else: it is tried again).
    error: what went wrong, with its traceback.
    results: what was measured, a `score` among it; None unless finished.
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
        """The name of its file, without the ending."""
        return f"{self.task}.{self.mapping}.{self.stage}{self.index}.{self.hash}"

    @property
    def score(self) -> float:
        """What runs are chosen by, higher is better: `score` of the results."""
        if self.results is None:
            raise ValueError(f"{self}: {self.status}")
        return float(self.results["score"])


@dataclass
class Records:
    """All records of a sweep by hash, and what is wrong with each file that could not be read."""

    by_hash: dict[str, Record] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def hash_of(config: dict[str, Any]) -> str:
    """Twelve hexadecimal digits that stand for a run's config."""
    text = json.dumps(config, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write_record(sweep: Path, record: Record) -> None:
    """Write a run's record, whole or not at all.

    Raises:
        UnwrittenError: such as on a full disk; nothing else has changed then.
    """
    write_json(sweep / FOLDER / f"{record.stem}.json", asdict(record))


def read_records(sweep: Path) -> Records:
    """Every record below a sweep's folder; files cut short or of another version are faults.

    A run's own file wins over its packed line: it is from later, such as that of a run that failed
    and was done again.
    """
    records = Records()
    packed = sweep / PACKED_FILE
    if packed.exists():
        for number, line in enumerate(packed.read_text(encoding="utf-8").splitlines(), start=1):
            _add(records, f"{packed.name} line {number}", line)
    for path in sorted((sweep / FOLDER).glob("*.json")):
        try:
            _add(records, path.name, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            records.faults.append(f"{path.name}: {error}")
    return records


def read_content(sweep: Path, program: str) -> dict[str, Any]:
    """What sweep.json of a sweep's folder holds.

    Args:
        sweep: the folder.
        program: whose sweep it should be, as the messages are to name it: such as glue.

    Raises:
        ValueError: there is no sweep.json, or it is broken or of another version.
    """
    file = sweep / SWEEP_FILE
    if not file.is_file():
        raise ValueError(
            f"{sweep}: has no {SWEEP_FILE}, so it is not the folder of a sweep; name the "
            f"output_dir of one, which `python -m {program} sweep` writes"
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


def pack(sweep: Path) -> Path:
    """Write all records into one file, a line each, in place of a file each; its path."""
    records, packed = read_records(sweep), sweep / PACKED_FILE
    if records.faults:
        raise ValueError(f"results_dir={sweep}: not every record is readable: {records.faults[0]}")
    if not records.by_hash:
        raise ValueError(f"results_dir={sweep}: holds no record of a sweep; name its output_dir")
    lines = [json.dumps(asdict(record)) + "\n" for record in records.by_hash.values()]
    write_text(packed, "".join(lines))
    for path in (sweep / FOLDER).glob("*.json"):
        path.unlink()
    return packed


def _add(records: Records, name: str, text: str) -> None:
    try:
        record = _parse(text)
    except ValueError as error:
        records.faults.append(f"{name}: {error}")
    else:
        records.by_hash[record.hash] = record


def _parse(text: str) -> Record:
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
    if record.status == "finished" and "score" not in (record.results or {}):
        raise ValueError("not a record of a run (finished, and without a score)")
    return record

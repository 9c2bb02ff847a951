"""One JSON file a run, whole or not there, found again by the hash of its config."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from glue.checkpoints import write_json

FORMAT = 1
SWEEP_FILE = "sweep.json"
FOLDER = "runs"


@dataclass(frozen=True)
class Record:
    """What became of a run.

    task, mapping: the task's name and the mapping's label in the sweep.
    stage, index: trial k, final seed k, or point k of the paper's grid.
    config: the run's `RunConfig`, without folders that may differ between machines.
    status: finished; diverged (its logits are no numbers, which is a result); failed (anything
        else: it is tried again).
    error: what went wrong, with its traceback.
    results: as results.json of `glue train` holds them; None unless finished.
    """

    task: str
    mapping: str
    stage: Literal["trial", "final", "grid"]
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
        """The task's main metric on the first split that was evaluated."""
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
        OSError: it could not be written, such as on a full disk; nothing else has changed then.
    """
    write_json(sweep / FOLDER / f"{record.stem}.json", asdict(record))


def read_records(sweep: Path) -> Records:
    """Every record below a sweep's folder; files cut short or of another version are faults."""
    records = Records()
    for path in sorted((sweep / FOLDER).glob("*.json")):
        try:
            record = _parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            records.faults.append(f"{path.name}: {error}")
        else:
            records.by_hash[record.hash] = record
    return records


def _parse(text: str) -> Record:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"cut short or broken ({error})") from None
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise ValueError(f"written as format {version}, this version reads format {FORMAT}")
    try:
        record = Record(**content)
    except TypeError as error:
        raise ValueError(f"not a record of a run ({error})") from None
    if record.status == "finished" and "score" not in (record.results or {}):
        raise ValueError("not a record of a run (finished, and without a score)")
    return record

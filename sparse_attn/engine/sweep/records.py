"""Records of runs: the results.json in the folder of each, or a line of an older runs.jsonl."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparse_attn.system.files import read_json

FORMAT = 1
SWEEP_FILE = "sweep.json"
FOLDER = "runs"
IMPORTS = "imports"  # key of sweep.json and results.json: the modules of `--import`
PACKED_FILE = "runs.jsonl"
Stage = Literal["trial", "final", "grid"]


@dataclass(frozen=True)
class Record:
    """The outcome of a run.

    task, mapping: task name and mapping label in the sweep.
    stage, index: trial k, final seed k, or grid point k.
    config: the settings that decide the result, without paths.
    status: finished; diverged (NaN or infinite outputs, which is a result); failed (any other
        error; or the run is still going on).
    error: why a run diverged or failed.
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
    def score(self) -> float:
        """`score` of the results, by which trials are chosen; higher is better."""
        if self.results is None:
            raise ValueError(f"{self}: {self.status}")
        return float(self.results["score"])


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
    """Return the hash that names a run; two labels of one mapping are two runs."""
    return hash_of({"label": mapping, **config})


def read_packed(sweep: Path) -> dict[str, Record]:
    """Return the records of runs.jsonl by hash, none without the file.

    Raises:
        ValueError: a line is no record, or its config has been changed.
    """
    file, records = sweep / PACKED_FILE, {}
    lines = file.read_bytes().splitlines() if file.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            record = Record(**json.loads(line))
            intact = record.hash == run_hash(record.mapping, record.config)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: not a record of a run ({error})") from None
        if not intact:
            raise ValueError(f"{file}, line {number}: its config was changed; restore it")
        records[record.hash] = record
    return records


def read_content(sweep: Path, prog: str) -> dict[str, Any]:
    """Return the content of sweep.json.

    Args:
        sweep: folder of the sweep.
        prog: command that runs such sweeps, such as `sparse-attn glue`, for errors.

    Raises:
        ValueError: sweep.json is missing, broken or of another version.
    """
    file = sweep / SWEEP_FILE
    if not file.is_file():
        below = ", ".join(sorted(found.parent.name for found in sweep.glob(f"*/{SWEEP_FILE}")))
        what = f"has no {SWEEP_FILE}" if sweep.is_dir() else "no such folder"
        raise ValueError(
            f"{sweep}: {what}; name the output_dir of a sweep, which `{prog} sweep` writes"
            f"{f'; sweeps below it: {below}' if below else ''}"
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

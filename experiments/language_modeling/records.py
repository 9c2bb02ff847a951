"""The folder of a run: whose it is, its record, its weights, and where it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.language_modeling.config import RunConfig
from pipeline.files import write_json
from pipeline.folders import RESULTS_FILE, check_claim

MODEL_FILE, CHECKPOINT_FILE = "model.pt", "checkpoint.pt"
# may differ between a run and its continuation: where things lie, and how often they are written
FREE = ("output_dir", "checkpoint_minutes", "resume", "corpus.data_dir")


def claim_output_dir(config: RunConfig) -> None:
    """Make output_dir this run's own.

    Raises:
        ValueError: as `check_output_dir`. Nothing is written then.
    """
    check_output_dir(config)
    folder = Path(config.output_dir)
    if not (folder / RESULTS_FILE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RESULTS_FILE, {"config": config.to_dict(), "status": "running"})


def check_output_dir(config: RunConfig) -> None:
    """Write nothing, and raise if this run may not have output_dir.

    Raises:
        ValueError: output_dir belongs to a run with another config, or to one that should be
            resumed or has ended, or there is none to resume.
    """
    folder, found, ended = Path(config.output_dir), None, None
    if (folder / RESULTS_FILE).exists():
        record = read_results(folder)
        found = _comparable(record["config"])
        ended = None if record["status"] == "running" else record["status"]
    check_claim(folder, _comparable(config.to_dict()), config.resume, found, ended)


def read_results(folder: Path) -> dict[str, Any]:
    """What results.json holds.

    Raises:
        ValueError: it is missing or not readable.
    """
    try:
        return json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"output_dir={folder}: {RESULTS_FILE} is not readable ({error}); expected the folder "
            "of a run"
        ) from None


def _comparable(config: dict[str, Any]) -> dict[str, Any]:
    """What decides a run's result, nested keys joined by dots."""
    return {key: value for key, value in _flat(config).items() if key not in FREE}


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        nested = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat

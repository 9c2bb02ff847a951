"""Folders that a run may write to: free ones, or the run's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparse_attn.system.files import differences, is_free, make_folder, read_json, write_json

CONFIG_FILE = "config.json"
RESULTS_FILE = "results.json"
CHECKPOINT_FILE = "checkpoint.pt"


def claim_run_folder(folder: Path, content: dict[str, Any], resume: bool) -> None:
    """Claim a folder for this run by writing config.json.

    Raises:
        ValueError: as `check_run_folder`. Nothing is written then.
    """
    check_run_folder(folder, content, resume)
    if not resume:
        make_folder(folder)
        write_json(folder / CONFIG_FILE, content)


def check_run_folder(folder: Path, content: dict[str, Any], resume: bool) -> None:
    """Raise if this run may not use the folder; writes nothing.

    Args:
        folder: output_dir of the run.
        content: settings that determine the result.
        resume: whether to resume the run in the folder.

    Raises:
        ValueError: output_dir belongs to a run with another config, or to a run that needs resume
            or has finished; or there is no run to resume.
    """
    config, results = folder / CONFIG_FILE, folder / RESULTS_FILE
    if not config.exists():
        if resume:
            raise ValueError(
                f"output_dir={folder}: holds no run to resume; omit --resume to start one"
            )
        if not is_free(folder):
            raise ValueError(
                f"output_dir={folder}: exists and is not the folder of a run; choose another"
            )
        return

    def read(file: Path) -> dict[str, Any]:
        found: dict[str, Any] = read_json(file, f"output_dir={folder}", "choose another output_dir")
        return found

    different = differences(content, read(config))
    if different:
        raise ValueError(
            f"output_dir={folder}: holds a run with another config ({'; '.join(different)}); "
            "choose another output_dir or delete this one"
        )
    if results.exists():
        ended = read(results).get("status", "finished")
        raise ValueError(
            f"output_dir={folder}: holds a {ended} run of this config, see {RESULTS_FILE}; choose "
            "another output_dir or delete this one"
        )
    if not resume:
        raise ValueError(
            f"output_dir={folder}: holds an interrupted run of this config; pass --resume to "
            "continue it, or choose another output_dir"
        )

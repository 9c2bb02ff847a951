"""Which folder a run may write to, and from which checkpoint it goes on."""

from __future__ import annotations

import json
import logging
import os
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import PartialState
from safetensors import SafetensorError, safe_open

from glue.config import RunConfig
from glue.tasks import get_task

CONFIG_FILE = "config.json"
RESULTS_FILE = "results.json"
# may differ between a run and its continuation: where things lie, and what is kept of them
FREE = ("output_dir", "data_dir", "resume", "keep_model")

logger = logging.getLogger(__name__)


def claim_for_all_processes(config: RunConfig) -> Path | None:
    """`claim_output_dir` by the main process; the others wait for it."""
    state = PartialState()
    checkpoint = None
    if state.is_main_process:
        checkpoint = claim_output_dir(config)
    state.wait_for_everyone()
    if not state.is_main_process and config.resume:
        checkpoint = last_complete_checkpoint(Path(config.output_dir))
    return checkpoint


def claim_output_dir(config: RunConfig) -> Path | None:
    """Make output_dir this run's own and return the checkpoint to go on from, if there is one.

    Raises:
        ValueError: as `check_output_dir`. Nothing is written then.
    """
    check_output_dir(config)
    if config.resume:
        return last_complete_checkpoint(Path(config.output_dir))
    Path(config.output_dir).mkdir(parents=True, exist_ok=True)
    write_json(Path(config.output_dir) / CONFIG_FILE, comparable(config))
    return None


def check_output_dir(config: RunConfig) -> None:
    """Write nothing, and raise if this run may not have output_dir.

    Raises:
        ValueError: output_dir belongs to a run with another config, or to one that should be
            resumed or has finished, or there is none to resume.
    """
    folder = Path(config.output_dir)
    asked = comparable(config)
    record = folder / CONFIG_FILE
    if config.resume and not record.exists():
        raise ValueError(
            f"output_dir={folder}: holds no run to resume; leave out --resume to start one"
        )
    if not record.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(
                f"output_dir={folder}: exists and is not the folder of a run; choose another"
            )
        return
    different = differences(asked, _read_config(record))
    if different:
        raise ValueError(
            f"output_dir={folder}: holds a run with another config ({'; '.join(different)}); "
            "choose another output_dir or delete this one"
        )
    if (folder / RESULTS_FILE).exists():
        raise ValueError(
            f"output_dir={folder}: holds a finished run of this config, see {RESULTS_FILE}; choose "
            "another output_dir or delete this one"
        )
    if not config.resume:
        raise ValueError(
            f"output_dir={folder}: holds a run of this config that was cut off; pass --resume to "
            "go on with it, or choose another output_dir"
        )


def comparable(config: RunConfig) -> dict[str, Any]:
    """What decides a run's result: two runs that agree in this are the same run."""
    content = {key: value for key, value in config.to_dict().items() if key not in FREE}
    task = get_task(config.task)
    if task.root is not None:
        # a task of one's own is what its file says, not where that lies
        own = {key: value for key, value in asdict(task).items() if key != "root"}
        content["task"] = json.loads(json.dumps(own))
    return content


def last_complete_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; those cut short are named in the log."""
    numbered = {
        int(path.name.removeprefix("checkpoint-")): path
        for path in folder.glob("checkpoint-*")
        if path.name.removeprefix("checkpoint-").isdigit()
    }
    for _, path in sorted(numbered.items(), reverse=True):
        fault = _fault(path)
        if fault is None:
            return path
        logger.warning("resume: %s is cut short (%s); going back to the one before", path, fault)
    return None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write whole or not at all, one line for each key: lists of numbers would fill pages."""
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        draft.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        draft.replace(path)
    finally:
        # what a full disk has cut short
        draft.unlink(missing_ok=True)


def _read_config(record: Path) -> dict[str, Any]:
    try:
        return json.loads(record.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"output_dir={record.parent}: {record.name} is not readable ({error}); choose another "
            "output_dir"
        ) from None


def differences(asked: Any, found: Any, name: str = "") -> list[str]:
    """`key: asked, there found` for every key that differs."""
    if isinstance(asked, dict) and isinstance(found, dict):
        keys = sorted({*asked, *found})
        return [
            text
            for key in keys
            for text in differences(asked.get(key), found.get(key), f"{name}.{key}".lstrip("."))
        ]
    return [] if asked == found else [f"{name}: asked {asked!r}, there {found!r}"]


def _fault(checkpoint: Path) -> str | None:
    """What is missing or broken in a checkpoint; Trainer writes trainer_state.json last."""
    state = checkpoint / "trainer_state.json"
    try:
        json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"{state.name} is missing or broken"
    all_weights = list(checkpoint.glob("*.safetensors"))
    if not all_weights:
        return "model.safetensors is missing"
    for weights in all_weights:
        try:
            with safe_open(weights, framework="pt"):
                pass
        except (OSError, SafetensorError):
            return f"{weights.name} is broken"
    # one state of the random numbers a process, which may come after trainer_state.json
    count = PartialState().num_processes
    states = [f"rng_state_{i}.pth" for i in range(count)] if count > 1 else ["rng_state.pth"]
    # FSDP writes its weights and its optimizer under names of its own, beside model.safetensors
    sharded = ["pytorch_model_fsdp.bin", "optimizer.bin"]
    names = sharded if any((checkpoint / name).exists() for name in sharded) else ["optimizer.pt"]
    for name in (*names, "scheduler.pt", *states):
        if not zipfile.is_zipfile(checkpoint / name):
            return f"{name} is missing or broken"
    return None

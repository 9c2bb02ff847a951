"""Trainer's checkpoints: find the one to resume from, and delete them."""

from __future__ import annotations

import json
import logging
import shutil
import zipfile
from pathlib import Path

from accelerate import PartialState
from safetensors import SafetensorError, safe_open

logger = logging.getLogger(__name__)


def remove_drafts(folder: Path) -> None:
    """Delete the partial files with random names that safetensors leaves when killed."""
    for name in ("checkpoint-*", "model"):
        for draft in folder.glob(f"{name}/.tmp*"):
            draft.unlink()


def last_complete_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint; truncated ones are named in the log."""
    numbered = {
        int(path.name.removeprefix("checkpoint-")): path
        for path in folder.glob("checkpoint-*")
        if path.name.removeprefix("checkpoint-").isdigit()
    }
    for _, path in sorted(numbered.items(), reverse=True):
        fault = _fault(path)
        if fault is None:
            return path
        logger.warning("resume: %s is truncated (%s); using the previous one", path, fault)
    return None


def logged_losses(folder: Path) -> list[tuple[int, float]]:
    """Return Trainer's logged steps and losses from the last complete checkpoint, if any."""
    last = last_complete_checkpoint(folder)
    if last is None:
        return []
    state = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))
    return [(line["step"], line["loss"]) for line in state["log_history"] if "loss" in line]


def remove_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of a finished run; each is three times the size of the model."""
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path, ignore_errors=True)


def _fault(checkpoint: Path) -> str | None:
    """Name a missing or corrupt file of a checkpoint; Trainer writes trainer_state.json last."""
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
    # one random state per process, which may be written after trainer_state.json
    count = PartialState().num_processes
    states = [f"rng_state_{i}.pth" for i in range(count)] if count > 1 else ["rng_state.pth"]
    # FSDP writes weights and optimizer under different names, beside model.safetensors
    sharded = ["pytorch_model_fsdp.bin", "optimizer.bin"]
    names = sharded if any((checkpoint / name).exists() for name in sharded) else ["optimizer.pt"]
    for name in (*names, "scheduler.pt", *states):
        if not _is_whole(checkpoint / name):
            return f"{name} is missing or broken"
    return None


def _is_whole(saved: Path) -> bool:
    """Whether a file of torch.save is complete, checksums included."""
    try:
        with zipfile.ZipFile(saved) as file:
            return file.testzip() is None
    except Exception:  # the type depends on the fault
        return False

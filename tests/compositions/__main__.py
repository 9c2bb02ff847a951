"""`python -m tests.compositions` writes results/compositions.json, which works-with.md shows."""

import json
import warnings
from pathlib import Path

import torch

from sparse_attn.system.machine import device_name, versions

from .cells import EQUAL, Cell, cells, in_two_processes, verdict
from .setups import NOTHING
from .subjects import SUBJECTS

FILE = Path(__file__).parents[2] / "results/compositions.json"


def row(cell: Cell) -> str:
    """Where a cell stands in the record."""
    _, setup, action = cell
    return str(action if setup is NOTHING else setup)


def main() -> None:
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, str]] = {}
    for subject, setup, action in cells():
        name = row((subject, setup, action))
        found.setdefault(name, {})[str(subject)] = verdict(subject, setup, action)
        print(f"{name}: {subject}: {found[name][str(subject)]}", flush=True)
    in_two_processes()
    found["DDP, two processes"] = {str(subject): EQUAL for subject in SUBJECTS}
    head = {
        "device": device_name(torch.device("cpu")),
        "versions": versions("torch", "transformers", "peft"),
    }
    FILE.write_text(json.dumps({**head, "cells": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

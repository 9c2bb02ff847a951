"""Wrong arguments of `python -m benchmarks.gpu`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.__main__ import main
from tests.bad_input import Wrong


def command(*arguments: str) -> Callable[[Path], Any]:
    return lambda folder: main([*arguments, "--out", str(folder)])


def unreadable(folder: Path) -> None:
    (folder / "gpu-cpu.json").write_text("{")
    command("--rehearse")(folder)


ROWS = [
    Wrong("gpu stage", command("saniti", "--rehearse"), SystemExit, "error: saniti: .*mean sanity"),
    Wrong("gpu budget", command("--budget", "soon"), SystemExit, "error: argument --budget: "),
    Wrong("gpu record", unreadable, SystemExit, "gpu-cpu.json is not readable .*; remove it, or "),
]
if not torch.cuda.is_available():
    says = "error: torch .* finds no GPU: see nvidia-smi, and install a CUDA build; --rehearse runs"
    ROWS.append(Wrong("gpu without one", command(), SystemExit, says))

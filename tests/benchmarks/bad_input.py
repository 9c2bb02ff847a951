"""Wrong arguments of `python -m benchmarks`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.__main__ import main
from tests.bad_input import Wrong


def command(*arguments: str) -> Callable[[Path], Any]:
    return lambda folder: main([*arguments, "--out", str(folder)])


ROWS = [
    Wrong(f"benchmarks {name}", command(*arguments), SystemExit, f"error: .*{says}")
    for name, arguments, says in (
        ("name", ("hedas",), "hedas: unknown; did you mean heads"),
        ("without a name", (), "BENCHMARK"),
        ("option", ("heads", "--bugdet", "9"), "did you mean --budget"),
        ("case", ("heads", "--case", "128K"), "--case 128K: expected .*softmax: 10k, "),
        ("budget", ("heads", "--budget", "-1"), "--budget: expected a number above 0, got -1"),
        ("device", ("heads", "--device", "tpu"), "--device"),
        ("enter", ("heads", "--enter", "record.json"), "--enter: only tune"),
        ("record", ("tune", "--enter", "record.json"), "record.json"),
        ("tune on a CPU", ("tune", "--device", "cpu"), "tune: needs a GPU"),
    )
]
if not torch.cuda.is_available():
    given = command("heads", "--device", "cuda")
    ROWS.append(Wrong("benchmarks gpu", given, SystemExit, "error: --device cuda: .*no GPU"))

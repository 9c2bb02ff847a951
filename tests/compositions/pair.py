"""A training step under DDP, in two processes that have half of the batch each."""

import faulthandler
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from sparse_attn.kernels.cpu import build
from tests.commands import ROOT

from .actions import Answer, gradients, halves
from .subjects import SUBJECTS

TIMEOUT = 120  # seconds


def two_processes() -> dict[str, Answer]:
    """The gradients of every subject, by its name."""
    build.library()  # both would compile it
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        command = [sys.executable, "-m", "tests.compositions.pair", folder]
        ranks = []
        for rank in "01":
            ranks.append(started.enter_context(subprocess.Popen([*command, rank], cwd=ROOT)))
            started.callback(ranks[-1].kill)
        assert [process.wait(TIMEOUT + 30) for process in ranks] == [0, 0]
        return torch.load(Path(folder, "gradients.pt"))


def main(folder: str, rank: int) -> None:
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT / 2),  # the other may have died
    )
    found = {}
    for subject in SUBJECTS:
        model = DistributedDataParallel(subject.build().train())
        model(**halves(subject)[rank]).loss.backward()
        found[subject.name] = gradients(model)
    if rank == 0:
        torch.save(found, Path(folder, "gradients.pt"))
    distributed.barrier()
    # without clean-up: once a process did not end after the other had, and why was not found
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

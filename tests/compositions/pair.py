"""A training step under DDP, in two processes that have half of the batch each."""

import faulthandler
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.commands import ROOT

from .actions import Answer, gradients, halves
from .subjects import SUBJECTS

TIMEOUT = 240  # seconds: both may have to compile the kernels first


def two_processes() -> dict[str, Answer]:
    """The gradients of every subject, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.compositions.pair", folder]
        ranks = [subprocess.Popen([*command, rank], cwd=ROOT) for rank in "01"]
        try:
            assert [process.wait(TIMEOUT + 30) for process in ranks] == [0, 0]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        return torch.load(Path(folder, "gradients.pt"))


def main(folder: str, rank: int) -> None:
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    found = {}
    for subject in SUBJECTS:
        model = DistributedDataParallel(subject.build().train())
        model(**halves(subject)[rank]).loss.backward()
        found[subject.name] = gradients(model)
    if rank == 0:
        torch.save(found, Path(folder, "gradients.pt"))
    distributed.barrier()
    os._exit(0)  # once, one did not end after the other had; how Gloo closes is not tested


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""Check and measure the Triton kernels on an NVIDIA GPU, into runs/gpu.

Run as:
    make gpu                           # what is left, for at most 9 minutes; again until none is
    python -m benchmarks.gpu           # the same, with the packages of this interpreter
    python -m benchmarks.gpu --rehearse --out runs/rehearsal   # tiny sizes, without a GPU
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from sparse_attn.cli.parser import LineParser
from sparse_attn.system.files import write_text

BUDGET = 540.0


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is left of the stages, and print the verdict."""
    parser = LineParser(
        prog="python -m benchmarks.gpu",
        description="Check and measure the Triton kernels on an NVIDIA GPU. Finished cases are "
        "not run again: repeat the command until nothing is left.",
    )
    add = parser.add_argument
    add("stages", nargs="*", metavar="STAGE", help="run these, in this order; default: all")
    add("--out", type=Path, default=Path("runs/gpu"), help="output folder; default: %(default)s")
    add("--budget", type=float, default=BUDGET, metavar="SECONDS", help="default: %(default)g")
    add("--rehearse", action="store_true", help="tiny sizes on the CPU, in Triton's interpreter")
    options = parser.parse_all(argv)
    if options.budget <= 0:
        parser.error(f"--budget {options.budget:g}: expected seconds above 0")
    ends = time.time() + options.budget
    if not options.rehearse and (wanting := _wanting()):
        parser.error(f"{wanting}; --rehearse runs the stages without a GPU")

    from benchmarks.gpu import verdict
    from benchmarks.gpu.runner import StageProgress, make_pool, run_stage
    from benchmarks.gpu.stage import Setup
    from benchmarks.gpu.stages import STAGES

    for name in options.stages:
        if name not in STAGES:
            parser.refuse(name, STAGES)
    setup = Setup(options.out, options.rehearse)
    try:
        progress = StageProgress(setup)
    except ValueError as error:
        parser.error(str(error))
    if options.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # read by the processes of the cases
    text = ""
    with make_pool(setup) as pool:
        for name in options.stages or STAGES:
            run_stage(STAGES[name], setup, progress, ends, pool)
            # a call that is cut off leaves the page of the stages before
            text = verdict.page(setup, progress, list(STAGES.values()))
            write_text(setup.out / "verdict.md", text)
    print(f"\n{text}", end="")


def _wanting() -> str | None:
    """Return what this machine lacks to run, or None."""
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU: see nvidia-smi, and install a CUDA build"
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return f"the GPU has compute capability {major}.{minor}: the kernels need 8.0 or more"
    return None


if __name__ == "__main__":
    main()

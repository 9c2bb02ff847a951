"""Run benchmark suites, writing runs/benchmarks/<suite>-<device>.json, .md and .png.

Run as:
    python -m benchmarks                   # attention and training steps, 13 minutes on 2 cores
    python -m benchmarks --quick           # small shapes, one minute
    python -m benchmarks heads recording   # other suites; --help names them
    python -m benchmarks --publish         # into results/benchmarks, which README and docs quote
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.command import Parser
from sparse_attn.cli.errors import input_errors

if TYPE_CHECKING:
    from benchmarks.suite import Case


def main(argv: Sequence[str] | None = None) -> None:
    """Run the selected cases of the selected suites, writing after each."""
    parser = Parser()
    options = parser.parse(argv)

    import torch

    from benchmarks.measure import get_suite, measure_all

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU; omit it to use the CPU")
    with input_errors():
        # the pictures are drawn last, after minutes of measuring
        import matplotlib  # noqa: F401

        suites = [*map(get_suite, dict.fromkeys(options.suites or ["attention"]))]
    chosen = {}
    for suite in suites:
        if device.type not in suite.paces:
            parser.error(f"{suite.name}: it measures the CPU kernels; add --device cpu")
        cases = suite.cases(device.type, options)
        chosen[suite] = [case for case in cases if _wanted(case, options)]
        if not chosen[suite]:
            names = ", ".join(f"{case.group}: {case.name}" for case in cases)
            parser.error(f"no case of {names} is selected; see --only and --case")
    for suite, cases in chosen.items():
        measure_all(suite, cases, device, options)


def _wanted(case: Case, options: argparse.Namespace) -> bool:
    group = not options.only or case.group in options.only
    return group and (not options.case or any(part in case.name for part in options.case))


if __name__ == "__main__":
    main()

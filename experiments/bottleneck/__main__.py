"""Command line of the softmax-bottleneck experiment.

Run as:
    python -m experiments.bottleneck run --config configs/bottleneck/figures-2-3.yaml
    python -m experiments.bottleneck report runs/bottleneck/figures-2-3
    python -m experiments.bottleneck pack runs/bottleneck/small results/bottleneck/small.jsonl
"""

from __future__ import annotations

import sys
from collections import Counter

from experiments.bottleneck.config import BottleneckConfig, PackConfig, ReportConfig
from pipeline.command import Command, Program, input_errors

PROGRAM = Program(
    name="experiments.bottleneck",
    description="Mode matching and KL of softmax, sigsoftmax, mixtures and monotone heads on "
    "Dirichlet targets (Ganea et al. 2019, figures 2, 3 and 6 to 8).",
    commands=(
        Command(
            "run",
            "the runs of a config",
            "Fit every head to Dirichlet targets over vocabularies and dimensions. The same "
            "command goes on where it was killed: what has a record is not run again.",
            (BottleneckConfig,),
        ),
        Command(
            "report",
            "what they show",
            "Mode matching, KL and log-matrix error by dimension: report.md and figures.",
            (ReportConfig,),
            positional=True,
        ),
        Command(
            "pack",
            "their records in one file",
            "Records of many files as one .jsonl, which `report` reads.",
            (PackConfig,),
            positional=True,
        ),
    ),
)
parse = PROGRAM.parse


def main(arguments: list[str] | None = None) -> None:
    """Parse, work, and say where the results are; one line for what the user can put right."""
    with input_errors():
        try:
            _work(parse(arguments))
        except KeyboardInterrupt:
            sys.exit("stopped; the same command goes on where this was")


def _work(config: BottleneckConfig | ReportConfig | PackConfig) -> None:
    # heavy imports, which --help does not need
    match config:
        case BottleneckConfig():
            from experiments.bottleneck.run import run

            count = Counter(record["status"] for record in run(config))
            found = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
            print(f"records in {config.output_dir}: {found}")
            print(f"next: python -m experiments.bottleneck report {config.output_dir}")
        case ReportConfig():
            from experiments.bottleneck.report import report

            print(report(config))
        case PackConfig():
            from experiments.bottleneck.records import pack

            print(f"{pack(config)} records: {config.file}")


if __name__ == "__main__":
    main()

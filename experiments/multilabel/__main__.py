"""Command line of multi-label classification.

Run as:
    python -m experiments.multilabel train --output_dir runs/one --synthetic.classes 20
    python -m experiments.multilabel sweep --config configs/multilabel/synthetic.yaml
    python -m experiments.multilabel report runs/multilabel/synthetic
"""

from __future__ import annotations

import sys
from collections import Counter

from jsonargparse import ActionYesNo, ArgumentParser

from experiments.multilabel.config import ReportConfig, RunConfig, SweepConfig
from pipeline.command import input_errors
from pipeline.sweep.config import Resources


def make_parser() -> ArgumentParser:
    """The parser, one sub-command a stage."""
    train = ArgumentParser(description="Train one method on one data set.")
    train.add_argument("--config", action="config", help="YAML file; options after it win")
    train.add_class_arguments(RunConfig, skip={"resume"})
    train.add_argument(
        "--resume",
        action=ActionYesNo,
        default=False,
        help="go on with the run that was cut off in output_dir",
    )
    sweep = ArgumentParser(
        description="Methods x data sets x seeds, spread by Ray (extra `ray`). The same command "
        "goes on where it was killed: what has a record is not run again."
    )
    sweep.add_argument("--config", action="config", help="YAML file; options after it win")
    sweep.add_class_arguments(SweepConfig)
    sweep.add_class_arguments(Resources)
    report = ArgumentParser(
        description="What the runs of a sweep show, finished or not: report.md and figures (extra "
        "`report`)."
    )
    report.add_class_arguments(ReportConfig, as_positional=True)
    parser = ArgumentParser(
        prog="python -m experiments.multilabel",
        description="Multi-label classification with softmax, sparse mappings and a sigmoid for "
        "each label (Balazy et al. 2023, table 1 and figures 2 and 3).",
    )
    commands = parser.add_subcommands()
    commands.add_subcommand("train", train, help="one run")
    commands.add_subcommand("sweep", sweep, help="many runs, on one machine or several")
    commands.add_subcommand("report", report, help="what the runs of a sweep show")
    return parser


def parse(
    arguments: list[str] | None = None,
) -> RunConfig | tuple[SweepConfig, Resources] | ReportConfig:
    """What command line and YAML files describe."""
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    options = parser.instantiate(parsed)[parsed.subcommand].as_dict()
    options.pop("config", None)
    if parsed.subcommand == "train":
        return RunConfig(**options)
    if parsed.subcommand == "report":
        return ReportConfig(**options)
    resources = {name: options.pop(name) for name in Resources.__dataclass_fields__}
    return SweepConfig(**options), Resources(**resources)


def main(arguments: list[str] | None = None) -> None:
    """Parse, work, and say where the results are."""
    with input_errors():
        _work(parse(arguments))


def _work(parsed: RunConfig | tuple[SweepConfig, Resources] | ReportConfig) -> None:
    # heavy imports and extras, which --help does not need
    match parsed:
        case RunConfig():
            from experiments.multilabel.train import train

            results = train(parsed)
            for average, value in results["f1"].items():
                print(f"{average} F1 on the {results['measured_on']} set: {100 * value:.2f}")
            print(f"results: {parsed.output_dir}/results.json")
        case ReportConfig():
            from experiments.multilabel.report import report

            print(f"report: {report(parsed)}")
        case (config, resources):
            from experiments.multilabel.sweep import sweep

            try:
                records = sweep(config, resources)
            except KeyboardInterrupt:
                sys.exit("stopped; the same command goes on where this was")
            count = Counter(record.status for record in records.by_hash.values())
            found = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
            print(f"records in {config.output_dir}: {found}")
            print(f"next: python -m experiments.multilabel report {config.output_dir}")
            if count["failed"]:
                sys.exit("error: some runs failed; the same command tries them again")


if __name__ == "__main__":
    main()

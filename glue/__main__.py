"""Command line of the GLUE pipeline.

Run as:
    accelerate launch -m glue train --config configs/glue/mrpc.yaml
    python -m glue train --config configs/glue/mrpc.yaml --mapping.params.r 0.2 --train.seed 1
    python -m glue sweep --config configs/glue/table2.yaml
    python -m glue report runs/table2
"""

from __future__ import annotations

import os
import sys
from collections import Counter

from accelerate import PartialState
from jsonargparse import ActionYesNo, ArgumentParser

from glue.config import ReportConfig, RunConfig
from glue.sweep.config import SweepConfig
from pipeline.command import input_errors
from pipeline.sweep.config import Resources


def make_parser() -> ArgumentParser:
    """The parser of `glue`, one sub-command a stage."""
    train = ArgumentParser(
        description="Fine-tune a Transformer on one task with a mapping in place of softmax."
    )
    train.add_argument("--config", action="config", help="YAML file; options after it win")
    train.add_class_arguments(RunConfig, skip={"resume"})
    train.add_argument(
        "--resume",
        action=ActionYesNo,
        default=False,
        help="go on with the run that was cut off in output_dir",
    )
    sweep = ArgumentParser(
        description="Tasks x mappings x hyper-parameters x seeds, spread by Ray (extra `ray`). "
        "The same command goes on where it was killed: what has a record is not run again. Start "
        "from configs/glue/table2.yaml; docs/glue.md explains a sweep key by key."
    )
    sweep.add_argument("--config", action="config", help="YAML file; options after it win")
    sweep.add_class_arguments(SweepConfig)
    sweep.add_class_arguments(Resources)
    report = ArgumentParser(
        description="What the runs of a sweep show, finished or not: report.md, report.csv and "
        "report.html (extra `report`)."
    )
    report.add_class_arguments(ReportConfig, as_positional=True)
    parser = ArgumentParser(
        prog="glue",
        description="GLUE with any probability mapping in attention. "
        "Such as: python -m glue train --config configs/glue/mrpc.yaml; "
        "python -m glue sweep --config configs/glue/table2.yaml; python -m glue report runs/table2",
    )
    commands = parser.add_subcommands()
    commands.add_subcommand("train", train, help="one fine-tuning run")
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
    """Parse, check everything that can be checked, then work and say where the results are."""
    with input_errors():
        parsed = parse(arguments)
    # heavy imports and extras, which --help does not need
    match parsed:
        case RunConfig():
            from glue.train import prepare, train

            with input_errors():
                run = prepare(parsed)
            results = train(run)
            if run.trainer.is_world_process_zero():
                for name, value in results["metrics"].items():
                    print(f"{results['task']} {name}: {value:.4f}")
                print(f"results: {parsed.output_dir}/results.json")
            if PartialState().num_processes > 1:
                _leave_at_once()
        case ReportConfig():
            with input_errors():
                from glue.report import report

                print(f"report: {report(parsed.results_dir, parsed.output_dir)}")
        case (config, resources):
            with input_errors():
                from glue.sweep.run import sweep

                try:
                    records = sweep(config, resources)
                except KeyboardInterrupt:
                    sys.exit("stopped; the same command goes on where this was")
            count = Counter(record.status for record in records.by_hash.values())
            found = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
            print(f"records in {config.output_dir}: {found}")
            print(f"next: python -m glue report {config.output_dir}")
            if count["failed"]:
                sys.exit("error: some runs failed; the same command tries them again")


def _leave_at_once() -> None:
    """End a process whose work is done without taking its process group apart.

    Gloo's threads let go of tensors under Python's lock, and the group's destructor waits for those
    threads under the same lock: now and then the end hangs, or aborts the process (torch 2.13).
    """
    PartialState().wait_for_everyone()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

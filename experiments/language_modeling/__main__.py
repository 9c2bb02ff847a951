"""Command line of the language-model experiments.

Run as:
    python -m experiments.language_modeling train --config configs/language_modeling/ptb-small.yaml
    python -m experiments.language_modeling train --config configs/language_modeling/ptb-awd.yaml \\
        --config configs/language_modeling/heads/mos.yaml --output_dir runs/ptb-mos
    python -m experiments.language_modeling measure runs/ptb-mos --rank_contexts 10000
    python -m experiments.language_modeling report results/language_modeling docs/lm.md
"""

from __future__ import annotations

from jsonargparse import ActionYesNo, ArgumentParser

from experiments.language_modeling.config import MeasureConfig, ReportConfig, RunConfig
from pipeline.command import input_errors, work_errors


def make_parser() -> ArgumentParser:
    """The parser, one sub-command a stage."""
    train = ArgumentParser(
        description="Train a language model with any head; perplexity as the papers count it. "
        "Lay a head over a model: --config configs/language_modeling/ptb-awd.yaml "
        "--config configs/language_modeling/heads/moss.yaml"
    )
    train.add_argument(
        "--config", action="config", help="YAML file; later files and options after it win"
    )
    train.add_class_arguments(RunConfig, skip={"resume"})
    train.add_argument(
        "--resume",
        action=ActionYesNo,
        default=False,
        help="go on with the run that was cut off in output_dir",
    )
    measure = ArgumentParser(
        description="Measure a run that has ended and write it into its results.json: top-10 "
        "error, slopes of a PLIF, and what the options ask for."
    )
    measure.add_class_arguments(MeasureConfig, as_positional=True)
    report = ArgumentParser(description="Our numbers beside the published ones, as a page.")
    report.add_class_arguments(ReportConfig, as_positional=True)
    parser = ArgumentParser(
        prog="experiments.language_modeling",
        description="Language models with any output mapping. Such as: python -m "
        "experiments.language_modeling train --config configs/language_modeling/ptb-small.yaml",
    )
    commands = parser.add_subcommands()
    commands.add_subcommand("train", train, help="one training run")
    commands.add_subcommand("measure", measure, help="rank, top-10 error, ... of a run")
    commands.add_subcommand("report", report, help="what runs show, beside the published")
    return parser


def parse(arguments: list[str] | None = None) -> RunConfig | MeasureConfig | ReportConfig:
    """What command line and YAML files describe."""
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    options = parser.instantiate(parsed)[parsed.subcommand].as_dict()
    options.pop("config", None)
    configs = {"train": RunConfig, "measure": MeasureConfig, "report": ReportConfig}
    return configs[parsed.subcommand](**options)


def main(arguments: list[str] | None = None) -> None:
    """Parse, check everything that can be checked, then work and say where the results are."""
    with input_errors():
        parsed = parse(arguments)
    # heavy imports, which --help does not need
    match parsed:
        case RunConfig():
            from experiments.language_modeling.train import prepare, train

            with input_errors():
                run = prepare(parsed)
            with work_errors():
                results = train(run)
            for split in ("valid", "test"):
                value = results[f"{split}_perplexity"]
                print(f"{results['head']} {split} perplexity: {value and f'{value:.2f}'}")
            if results["test_perplexity"] == float("inf"):
                print("inf: the head gives some targets p = 0; `measure` has its top-10 error")
            print(f"results: {parsed.output_dir}/results.json")
        case MeasureConfig():
            from experiments.language_modeling.measuring import measure

            with input_errors():
                found = measure(parsed)
            for name in ("top_10_error", "slopes", "simlex", "dynamic"):
                if found[name] is not None:
                    print(f"{name}: {found[name]}")
            if found["rank"] is not None:
                print(f"rank: { {k: v for k, v in found['rank'].items() if k != 'spectrum'} }")
            print(f"results: {parsed.run_dir}/results.json")
        case ReportConfig():
            from experiments.language_modeling.report import report

            with input_errors():
                print(f"report: {report(parsed.results_dir, parsed.output)}")


if __name__ == "__main__":
    main()

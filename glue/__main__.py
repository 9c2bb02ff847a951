"""Command line of the GLUE pipeline.

Run as:
    accelerate launch -m glue train --config configs/glue/mrpc.yaml
    python -m glue train --config configs/glue/mrpc.yaml --mapping.params.r 0.2 --train.seed 1
"""

from __future__ import annotations

import sys

from jsonargparse import ActionYesNo, ArgumentParser

from glue.config import RunConfig


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
    parser = ArgumentParser(
        prog="glue", description="GLUE with any probability mapping in attention."
    )
    commands = parser.add_subcommands()
    commands.add_subcommand("train", train, help="one fine-tuning run")
    return parser


def parse(arguments: list[str] | None = None) -> RunConfig:
    """The config that command line and YAML files describe."""
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    options = parser.instantiate(parsed)[parsed.subcommand].as_dict()
    options.pop("config")
    return RunConfig(**options)


def main(arguments: list[str] | None = None) -> None:
    """Parse, check everything that can be checked, then train and print the metrics."""
    try:
        config = parse(arguments)
        # heavy imports, which --help does not need
        from glue.train import prepare, train

        run = prepare(config)
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"error: {error}")
    results = train(run)
    if run.trainer.is_world_process_zero():
        for name, value in results["metrics"].items():
            print(f"{results['task']} {name}: {value:.4f}")
        print(f"results: {config.output_dir}/results.json")


if __name__ == "__main__":
    main()

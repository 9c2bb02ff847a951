"""Command line of the language-model experiments.

Run as:
    python -m experiments.language_modeling train --config configs/language_modeling/ptb-small.yaml
    python -m experiments.language_modeling train --config configs/language_modeling/ptb-awd.yaml \\
        --config configs/language_modeling/heads/mos.yaml --output_dir runs/ptb-mos
    python -m experiments.language_modeling measure runs/ptb-mos --rank_contexts 10000
    python -m experiments.language_modeling report results/language_modeling docs/lm.md
"""

from __future__ import annotations

from experiments.language_modeling.config import MeasureConfig, ReportConfig, RunConfig
from pipeline.command import Command, Program, input_errors, work_errors
from pipeline.hub import settle_hub

PROGRAM = Program(
    name="experiments.language_modeling",
    description="Language models with any output mapping. Such as: python -m "
    "experiments.language_modeling train --config configs/language_modeling/ptb-small.yaml",
    commands=(
        Command(
            "train",
            "one training run",
            "Train a language model with any head; perplexity as the papers count it. Lay a head "
            "over a model: --config configs/language_modeling/ptb-awd.yaml --config "
            "configs/language_modeling/heads/moss.yaml",
            (RunConfig,),
        ),
        Command(
            "measure",
            "rank, top-10 error, ... of a run",
            "Measure a run that has ended and write it into its results.json: top-10 error, slopes "
            "of a PLIF, and what the options ask for.",
            (MeasureConfig,),
            positional=True,
        ),
        Command(
            "report",
            "what runs show, beside the published",
            "Our numbers beside the published ones, as a page.",
            (ReportConfig,),
            positional=True,
        ),
    ),
)
parse = PROGRAM.parse


def main(arguments: list[str] | None = None) -> None:
    """Parse, check everything that can be checked, then work and say where the results are."""
    with input_errors():
        parsed = parse(arguments)
        settle_hub(parsed)
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
                print(report(parsed.results_dir, parsed.output))


if __name__ == "__main__":
    main()

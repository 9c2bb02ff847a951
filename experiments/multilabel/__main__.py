"""Command line of multi-label classification.

Run as:
    python -m experiments.multilabel train --output_dir runs/one --synthetic.classes 20
    python -m experiments.multilabel sweep --config configs/multilabel/synthetic.yaml
    python -m experiments.multilabel report runs/multilabel/synthetic
"""

from __future__ import annotations

from experiments.multilabel.config import RunConfig, SweepConfig
from pipeline.command import Program, input_errors, stages
from pipeline.config import ReportConfig
from pipeline.sweep.config import Resources

PROGRAM = Program(
    name="experiments.multilabel",
    description="Multi-label classification with softmax, sparse mappings and a sigmoid for each "
    "label (Balazy et al. 2023, table 1 and figures 2 and 3).",
    commands=stages(
        RunConfig,
        SweepConfig,
        ReportConfig,
        {
            "train": "Train one method on one data set.",
            "sweep": "Methods x data sets x seeds.",
            "report": "What the runs show: report.md and figures.",
        },
    ),
)


def main(arguments: list[str] | None = None) -> None:
    """Parse, work, and say where the results are."""
    PROGRAM.main(_work, arguments)


def _work(parsed: RunConfig | tuple[SweepConfig, Resources] | ReportConfig) -> None:
    # heavy imports and extras, which --help does not need
    match parsed:
        case RunConfig():
            from experiments.multilabel.train import prepare, train

            with input_errors():
                training = prepare(parsed)
            results = train(training)
            for average, value in results["f1"].items():
                print(f"{average} F1 on the {results['measured_on']} set: {100 * value:.2f}")
            print(f"results: {parsed.output_dir}/results.json")
        case ReportConfig():
            from experiments.multilabel.report import report

            with input_errors():
                print(report(parsed))
        case (config, resources):
            from experiments.multilabel.sweep import sweep

            with input_errors():
                records = sweep(config, resources)
            PROGRAM.tell(records, config.output_dir)


if __name__ == "__main__":
    main()

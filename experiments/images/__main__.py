"""Command line of the image experiment.

Run as:
    python -m experiments.images train --config configs/images/mnist.yaml --loss.name taylor-softmax
    python -m experiments.images sweep --config configs/images/mnist-table1.yaml
    python -m experiments.images report runs/images/mnist-table1
"""

from __future__ import annotations

from experiments.images.config import RunConfig
from experiments.images.sweep_config import SweepConfig
from pipeline.command import Program, input_errors, stages
from pipeline.config import ReportConfig
from pipeline.sweep.config import Resources

PROGRAM = Program(
    name="experiments.images",
    description="MNIST and CIFAR with squared error, softmax, softmax-abs, spherical and Taylor "
    "softmax (de Brebisson & Vincent 2016, tables 1 to 4).",
    commands=stages(
        RunConfig,
        SweepConfig,
        ReportConfig,
        {
            "train": "Train one network with one loss.",
            "sweep": "Losses x learning rates, then many splits and seeds.",
            "report": "What the runs show, beside the published numbers: report.md and figures.",
        },
    ),
)


def main(arguments: list[str] | None = None) -> None:
    """Parse, work, and say where the results are."""
    PROGRAM.main(_work, arguments)


def _work(config: RunConfig | tuple[SweepConfig, Resources] | ReportConfig) -> None:
    # heavy imports and extras, which --help does not need
    match config:
        case RunConfig():
            from experiments.images.train import prepare, train

            with input_errors():
                run = prepare(config)
            results = train(run)
            print(f"{results['data']} {results['loss']}, epoch {results['best_epoch']}")
            for part in ("validation", "test"):
                measured = dict(results[part] or {})
                # in place of its name, which for -log p is that of the likelihood itself
                measured |= {results["measure"]: measured.pop("criterion")} if measured else {}
                for name, value in measured.items():
                    print(f"{part} {name}: {value:.4f}")
            print(f"results: {config.output_dir}/results.json")
        case ReportConfig():
            from experiments.images.report import report

            with input_errors():
                print(report(config))
        case (sweep_config, resources):
            from experiments.images.sweep import sweep

            with input_errors():
                records = sweep(sweep_config, resources)
            PROGRAM.tell(records, sweep_config.output_dir)


if __name__ == "__main__":
    main()

"""Command line of the GLUE pipeline.

Run as:
    python -m glue train --config configs/glue/mrpc.yaml
    python -m glue train --config configs/glue/mrpc.yaml --mapping.params.r 0.2 --train.seed 1
    python -m glue sweep --config configs/glue/table2.yaml
    python -m glue report runs/table2
"""

from __future__ import annotations

import os
import sys

from glue.config import RunConfig
from glue.sweep.config import SweepConfig
from pipeline.command import Program, input_errors, stages, work_errors
from pipeline.config import ReportConfig
from pipeline.hub import settle_hub

PROGRAM = Program(
    name="glue",
    description="GLUE with any probability mapping in attention. "
    "Such as: python -m glue train --config configs/glue/mrpc.yaml; "
    "python -m glue sweep --config configs/glue/table2.yaml; python -m glue report runs/table2",
    commands=stages(
        RunConfig,
        SweepConfig,
        ReportConfig,
        {
            "train": "Fine-tune a Transformer on one task with a mapping in place of softmax.",
            "sweep": "Tasks x mappings x hyper-parameters x seeds. Start from "
            "configs/glue/table2.yaml; docs/glue.md explains a sweep key by key.",
            "report": "What the runs show: report.md, report.csv and report.html.",
        },
    ),
)


def main(arguments: list[str] | None = None) -> None:
    """Parse, check everything that can be checked, then work and say where the results are."""
    with input_errors():
        parsed = PROGRAM.parse(arguments)
        settle_hub(parsed)
    # heavy imports and extras, which --help does not need
    match parsed:
        case RunConfig():
            from accelerate import PartialState

            from glue.summary import summary
            from glue.train import prepare, train

            with input_errors():
                run = prepare(parsed)
            with work_errors():
                results = train(run)
            if run.trainer.is_world_process_zero():
                print(summary(results, run.task, parsed))
            if PartialState().num_processes > 1:
                _leave_at_once()
        case ReportConfig():
            with input_errors():
                from glue.report import report

                print(report(parsed.results_dir, parsed.output_dir))
        case (config, resources):
            with input_errors():
                from glue.sweep.run import sweep

                try:
                    records = sweep(config, resources)
                except KeyboardInterrupt:
                    sys.exit("stopped; the same command goes on where this was")
            PROGRAM.tell(records, config.output_dir)


def _leave_at_once() -> None:
    """End a process whose work is done without taking its process group apart.

    Gloo's threads let go of tensors under Python's lock, and the group's destructor waits for those
    threads under the same lock: now and then the end hangs, or aborts the process (torch 2.13).
    """
    from accelerate import PartialState

    PartialState().wait_for_everyone()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""The GLUE pipeline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparse_attn.engine.command import Command
from sparse_attn.engine.config import ReportConfig
from sparse_attn.engine.experiment import Experiment
from sparse_attn.engine.sweep.config import Resources

from .check import CheckConfig
from .config import RunConfig
from .sweep import SweepConfig

if TYPE_CHECKING:
    from sparse_attn.engine.sweep.plan import SweepPlan


def check(config: CheckConfig, resources: Resources) -> None:
    """Run the sweep of a check, and report."""
    sweep = config.sweep()
    if resources.dry_run:
        print("\n".join(EXPERIMENT.due(sweep, resources)))
        return
    EXPERIMENT.search(sweep, resources)
    print(EXPERIMENT.report(ReportConfig(sweep.output_dir)))
    from .summary import next_commands

    for line in next_commands(sweep, EXPERIMENT.read(Path(sweep.output_dir)).records):
        print(line)


class Glue(Experiment[RunConfig, SweepConfig]):
    """Experiment that fine-tunes Transformers with Trainer, in one process or several."""

    name, package = "glue", __package__
    description = (
        "GLUE with any probability mapping in attention. Examples: sparse-attn glue train --config "
        "configs/glue/mrpc.yaml; sparse-attn glue sweep --config configs/glue/table2.yaml; "
        "sparse-attn glue report runs/table2"
    )
    about = (
        "Fine-tune a Transformer on one task with a mapping instead of softmax.",
        "Tasks x mappings x hyper-parameters x seeds. Start from configs/glue/table2.yaml; "
        "docs/glue.md explains a sweep key by key.",
        "What the runs show: report.html, report.md and report.csv.",
    )
    run, sweep, module = RunConfig, SweepConfig, "train"
    further = (
        Command(
            "check",
            "does a mapping hurt on your data?",
            "Softmax and other mappings on your labelled file: three learning rates on held-out "
            "training rows, then three seeds of the best. After a kill, the same command "
            "continues.",
            (CheckConfig, Resources),
            work=check,
        ),
    )

    def prepare(self, config: RunConfig) -> Any:
        from accelerate import PartialState

        from sparse_attn.hf.checkpoints import remove_drafts

        run = super().prepare(config)
        if self.is_main_process:
            remove_drafts(Path(config.output_dir))
            for line in run.about:
                print(line)
        PartialState().wait_for_everyone()
        return run

    @property
    def is_main_process(self) -> bool:
        from accelerate import PartialState

        return bool(PartialState().is_main_process)

    def tidy(self, folder: Path) -> None:
        from sparse_attn.hf.checkpoints import remove_checkpoints

        remove_checkpoints(folder)

    def summary(self, results: dict[str, Any], config: RunConfig) -> list[str]:
        from .summary import summary

        return summary(results, config)

    def plan(self, sweep: SweepConfig) -> SweepPlan:
        from .plan import make_plan

        return make_plan(sweep)

    def check(self, sweep: SweepConfig, plan: SweepPlan) -> None:
        from .train import check_sweep

        check_sweep(sweep, plan)

    def main(self, arguments: list[str] | None = None) -> None:
        super().main(arguments)
        if "accelerate" in sys.modules:
            from sparse_attn.system.machine import exit_without_teardown

            exit_without_teardown()


EXPERIMENT = Glue()
main = EXPERIMENT.main

if __name__ == "__main__":
    main()

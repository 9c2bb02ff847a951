"""The softmax bottleneck on Dirichlet targets.

Run as:
    python -m experiments.bottleneck train --output_dir runs/one --head mos --options.components 15
    python -m experiments.bottleneck sweep --config configs/bottleneck/small.yaml
    python -m experiments.bottleneck report runs/bottleneck/small
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.bottleneck.config import RunConfig, SweepConfig
from pipeline.experiment import Experiment

if TYPE_CHECKING:
    import torch

    from pipeline.report.page import Page
    from pipeline.sweep.plan import Plan
    from pipeline.sweep.results import Results


class Bottleneck(Experiment[RunConfig, SweepConfig]):
    """Heads x vocabularies x dimensions x learning rates, then the best rate over many seeds."""

    name = "experiments.bottleneck"
    description = (
        "Mode matching and KL of softmax, sigsoftmax, mixtures and monotone heads on Dirichlet "
        "targets (Ganea et al. 2019, figures 2, 3 and 6 to 8)."
    )
    about = (
        "Fit one head to Dirichlet targets.",
        "Fit every head to Dirichlet targets over vocabularies and dimensions.",
        "Mode matching, KL and log-matrix error by dimension.",
    )
    run, sweep = RunConfig, SweepConfig

    def assemble(self, config: RunConfig) -> tuple[RunConfig, torch.device]:
        from pipeline.machine import choose_device

        return config, choose_device(config.device)

    def perform(self, parts: tuple[RunConfig, torch.device], folder: Path | None) -> dict[str, Any]:
        from experiments.bottleneck.run import run

        return run(*parts)

    def summary(self, results: dict[str, Any], config: RunConfig) -> Iterator[str]:
        yield f"mode matching: {results['mode_matching']:.1f} %"
        yield f"mean KL: {results['kl']:.3f} nats"
        yield f"error of the log-matrix: {results['log_error']:.1f}, floor {results['floor']:.1f}"
        yield f"results: {config.output_dir}/results.json"

    def plan(self, sweep: SweepConfig) -> Plan:
        from pipeline.sweep.plan import best_of

        return best_of(sweep.trials(), lambda best, seed: replace(best, seed=seed), sweep.seeds)

    def fresh(self, sweep: SweepConfig) -> bool:
        # runs take seconds, and those of one process share their targets
        return False

    def page(self, results: Results) -> Page:
        from experiments.bottleneck.report import make_page

        return make_page(results)


EXPERIMENT = Bottleneck()
main = EXPERIMENT.main

if __name__ == "__main__":
    main()

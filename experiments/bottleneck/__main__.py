"""The softmax bottleneck on Dirichlet targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.bottleneck.config import BottleneckRunConfig, BottleneckSweepConfig
from sparse_attn.engine.experiment import Experiment

if TYPE_CHECKING:
    from sparse_attn.engine.sweep.plan import SweepPlan


class Bottleneck(Experiment[BottleneckRunConfig, BottleneckSweepConfig]):
    """Heads x vocabularies x dimensions x learning rates, then the best rate over many seeds."""

    name, package = "bottleneck", "experiments.bottleneck"
    description = (
        "Mode matching and KL of softmax, sigsoftmax, mixtures and monotone heads on Dirichlet "
        "targets (Ganea et al. 2019, figures 2, 3 and 6 to 8)."
    )
    about = (
        "Fit one head to Dirichlet targets.",
        "Fit every head to Dirichlet targets over vocabularies and dimensions.",
        "Mode matching, KL and log-matrix error by dimension.",
    )
    run, sweep = BottleneckRunConfig, BottleneckSweepConfig

    def summary(self, results: dict[str, Any], config: BottleneckRunConfig) -> Iterator[str]:
        yield f"mode matching: {results['mode_matching']:.1f} %"
        yield f"mean KL: {results['kl']:.3f} nats"
        yield f"error of the log-matrix: {results['log_error']:.1f}, floor {results['floor']:.1f}"
        yield f"results: {config.output_dir}/results.json"

    def plan(self, sweep: BottleneckSweepConfig) -> SweepPlan:
        from sparse_attn.engine.sweep.plan import best_of

        return best_of(sweep.trials(), lambda best, seed: replace(best, seed=seed), sweep.seeds)


EXPERIMENT = Bottleneck()
main = EXPERIMENT.main

if __name__ == "__main__":
    main()

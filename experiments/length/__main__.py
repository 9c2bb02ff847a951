"""Length generalisation: recall and flip-flops in texts longer than in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from experiments.length.config import LengthRunConfig, LengthSweepConfig
from sparse_attn.engine.experiment import Experiment

if TYPE_CHECKING:
    from sparse_attn.engine.sweep.plan import SweepPlan


class Length(Experiment[LengthRunConfig, LengthSweepConfig]):
    """Attention functions x seeds; nothing is chosen on the texts of the test."""

    name, package = "length", "experiments.length"
    description = (
        "Accuracy of attention functions on texts longer than in training: multi-query recall of "
        "associations (Vasylenko et al. 2025) and flip-flops (Liu et al. 2023)."
    )
    about = (
        "Train and test one model.",
        "Train and test a model with every attention function.",
        "Accuracy and exact zeros by length.",
    )
    run, sweep = LengthRunConfig, LengthSweepConfig

    def summary(self, results: dict[str, Any], config: LengthRunConfig) -> Iterator[str]:
        for length, accuracy in zip(config.lengths, results["accuracy"], strict=True):
            yield f"{length:,} tokens: {accuracy:.1f} %"
        yield f"results: {config.output_dir}/results.json"

    def plan(self, sweep: LengthSweepConfig) -> SweepPlan:
        from sparse_attn.engine.sweep.plan import grid

        return grid(sweep.runs())


EXPERIMENT = Length()
main = EXPERIMENT.main

if __name__ == "__main__":
    main()

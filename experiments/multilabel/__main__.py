"""Multi-label classification with every mapping as the output of a classifier."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.multilabel.config import MultilabelRunConfig, MultilabelSweepConfig
from sparse_attn.engine.experiment import Experiment
from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED

if TYPE_CHECKING:
    from sparse_attn.engine.sweep.plan import SweepPlan


class MultiLabel(Experiment[MultilabelRunConfig, MultilabelSweepConfig]):
    """Methods x data sets x seeds, after a search over learning rates if several."""

    name, package = "multilabel", "experiments.multilabel"
    description = (
        "Multi-label classification with softmax, sparse mappings and a sigmoid for each label "
        "(Balazy et al. 2023, table 1 and figures 2 and 3)."
    )
    about = (
        "Train one method on one data set.",
        "Methods x data sets x seeds.",
        "What the runs show.",
    )
    run, sweep = MultilabelRunConfig, MultilabelSweepConfig

    def settings(self, content: dict[str, Any]) -> dict[str, Any]:
        data = content.get("data")
        for section in data.values() if isinstance(data, dict) else ():
            if isinstance(section, dict):
                section.pop("text", None)  # null in the records from when texts were a third kind
        return super().settings(content)

    def summary(self, results: dict[str, Any], config: MultilabelRunConfig) -> Iterator[str]:
        for average, value in results["f1"].items():
            yield f"{average} F1 on the {results['measured_on']} set: {100 * value:.2f} %"
        yield f"results: {config.output_dir}/results.json"

    def plan(self, sweep: MultilabelSweepConfig) -> SweepPlan:
        from sparse_attn.engine.sweep.plan import best_of, grid

        cells = list(itertools.product(sweep.data, sweep.methods))
        rates, seeds = sweep.learning_rates, range(sweep.seeds)
        if len(rates) == 1:
            return grid({c: [sweep.run(*c, rates[0], seed) for seed in seeds] for c in cells})

        def final(best: MultilabelRunConfig, seed: int) -> MultilabelRunConfig:
            return replace(best, train=replace(best.train, seed=seed))

        trials = {c: [sweep.run(*c, rate, FIRST_TRIAL_SEED) for rate in rates] for c in cells}
        return best_of(trials, final, sweep.seeds)


EXPERIMENT = MultiLabel()
main = EXPERIMENT.main

if __name__ == "__main__":
    main()

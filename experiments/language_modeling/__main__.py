"""Word and character language models with any output mapping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.language_modeling.config import (
    LanguageRunConfig,
    LanguageSweepConfig,
    MeasuresConfig,
)
from sparse_attn.engine.experiment import Experiment

if TYPE_CHECKING:
    from sparse_attn.engine.sweep.plan import Cell, SweepPlan
    from sparse_attn.engine.sweep.results import Results


class LanguageModeling(Experiment[LanguageRunConfig, LanguageSweepConfig]):
    """Heads x seeds on one model, after a search over learning rates if several."""

    name, package = "language-modeling", "experiments.language_modeling"
    description = (
        "Language models with any output mapping. Example: sparse-attn language-modeling train "
        "--config configs/language_modeling/ptb-small.yaml"
    )
    about = (
        "Train a language model with any head; perplexity as the papers count it. Combine a "
        "model and a head: --config configs/language_modeling/ptb-awd.yaml --config "
        "configs/language_modeling/heads/moss.yaml",
        "One model with many heads x seeds.",
        "Our numbers beside the published ones; also for a folder of single runs.",
    )
    run, sweep, module = LanguageRunConfig, LanguageSweepConfig, "train"

    def summary(self, results: dict[str, Any], config: LanguageRunConfig) -> Iterator[str]:
        for split in ("valid", "test"):
            yield f"{results['head']} {split} perplexity: {results[f'{split}_perplexity']:.2f}"
        error = f"top-10 error: {results['top_10_error']:.4f}"
        zeros = results["test_perplexity"] == float("inf")
        yield f"inf: the head gives some targets p = 0; {error}" if zeros else error
        yield f"results: {config.output_dir}/results.json"

    def plan(self, sweep: LanguageSweepConfig) -> SweepPlan:
        from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED
        from sparse_attn.engine.sweep.plan import best_of, grid

        rates, seeds = sweep.learning_rates, range(sweep.seeds)
        one_rate = len(rates) == 1
        settings = [(rate, FIRST_TRIAL_SEED) for rate in rates]
        if one_rate:
            settings = [(rates[0], seed) for seed in seeds]
        measures = sweep.measures if one_rate else MeasuresConfig()
        runs: dict[Cell, list[LanguageRunConfig]] = {
            (sweep.corpus.name, label): [
                replace(sweep.run_of(head, *setting), measures=measures) for setting in settings
            ]
            for label, head in sweep.heads.items()
        }
        if one_rate:
            return grid(runs)

        def final(best: LanguageRunConfig, seed: int) -> LanguageRunConfig:
            return replace(best, seed=seed, measures=sweep.measures)

        return best_of(runs, final, sweep.seeds)

    def check(self, sweep: LanguageSweepConfig, plan: SweepPlan) -> None:
        from experiments.language_modeling.train import check_heads

        check_heads(sweep)

    def read(self, folder: Path) -> Results:
        """Read the records of a sweep, or of single runs below a folder."""
        from sparse_attn.engine.sweep.records import SWEEP_FILE

        if (folder / SWEEP_FILE).is_file():
            return super().read(folder)
        from experiments.language_modeling.report.runs import read_runs

        return read_runs(folder)


EXPERIMENT = LanguageModeling()
main = EXPERIMENT.main

if __name__ == "__main__":
    main()

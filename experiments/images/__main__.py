"""MNIST and CIFAR with losses of the spherical family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.images.config import ImageRunConfig, ImageSweepConfig
from sparse_attn.engine.experiment import Experiment

if TYPE_CHECKING:
    from sparse_attn.engine.sweep.plan import Cell, SweepPlan


class Images(Experiment[ImageRunConfig, ImageSweepConfig]):
    """Losses x learning rates, then the best rate of each loss over many splits and seeds."""

    name, package = "images", "experiments.images"
    description = (
        "MNIST and CIFAR with squared error, softmax, softmax-abs, spherical and Taylor softmax "
        "(de Brebisson & Vincent 2016, tables 1 to 4)."
    )
    about = (
        "Train one network with one loss.",
        "Losses x learning rates, then many splits and seeds.",
        "Results next to the published numbers.",
    )
    run, sweep = ImageRunConfig, ImageSweepConfig

    def tidy(self, folder: Path) -> None:
        """Keep the checkpoint, because it has the best weights."""

    def summary(self, results: dict[str, Any], config: ImageRunConfig) -> Iterator[str]:
        yield f"{results['data']} {results['loss']}, epoch {results['best_epoch']}"
        for part in ("validation", "test"):
            measured = dict(results[part] or {})
            # named after the measure, which for -log p is negll itself
            measured |= {results["measure"]: measured.pop("criterion")} if measured else {}
            for name, value in measured.items():
                yield f"{part} {name}: {value:.4f}"
        yield f"results: {config.output_dir}/results.json"

    def plan(self, sweep: ImageSweepConfig) -> SweepPlan:
        from sparse_attn.engine.sweep.plan import best_of

        def final(best: ImageRunConfig, seed: int) -> ImageRunConfig:
            return replace(best, test=True, train=replace(best.train, seed=seed))

        trials: dict[Cell, list[ImageRunConfig]] = {
            (sweep.data.name, label): [sweep.trial(loss, rate) for rate in loss.learning_rates]
            for label, loss in sweep.losses.items()
        }
        return best_of(trials, final, sweep.runs)


EXPERIMENT = Images()
main = EXPERIMENT.main

if __name__ == "__main__":
    main()

"""Ways to convert a pretrained sentence encoder, compared with the same budget.

Run as:
    python -m experiments.conversion train --output_dir runs/one --texts A.txt --pairs B.tsv
    python -m experiments.conversion sweep --config configs/conversion/minilm.yaml \
        --texts A.txt --pairs B.tsv
    python -m experiments.conversion report runs/conversion/minilm
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.experiment import Experiment
from experiments.conversion.config import ConversionRunConfig, ConversionSweepConfig

if TYPE_CHECKING:
    from engine.sweep.plan import SweepPlan


class Conversion(Experiment[ConversionRunConfig, ConversionSweepConfig]):
    """Ways x seeds; the scored pairs are not used for any choice."""

    name = "experiments.conversion"
    description = (
        "Ways to give the attention of a pretrained sentence encoder exact zeros: distillation "
        "with and without ramp, kept zeros and frozen parts, continued training, and controls."
    )
    about = (
        "Convert a model in one way.",
        "Convert a model in every way.",
        "Zeros, quality and agreement by way.",
    )
    run, sweep = ConversionRunConfig, ConversionSweepConfig

    def tidy(self, folder: Path) -> None:
        from sparse_attn.hf.checkpoints import remove_checkpoints

        remove_checkpoints(folder)

    def summary(self, results: dict[str, Any], config: ConversionRunConfig) -> Iterator[str]:
        low, high = results["difference"]["interval"]
        yield f"zeros: {100 * results['zeros']:.1f} %"
        yield (
            f"Spearman x 100: {results['score']:.2f}, {results['difference']['value']:+.2f} "
            f"[{low:+.2f}, {high:+.2f}] against softmax"
        )
        yield f"results: {config.output_dir}/results.json"

    def plan(self, sweep: ConversionSweepConfig) -> SweepPlan:
        from engine.sweep.plan import grid

        return grid(sweep.runs())


EXPERIMENT = Conversion()
main = EXPERIMENT.main

if __name__ == "__main__":
    main()

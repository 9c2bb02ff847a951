"""Configs of runs and sweeps: dataclasses filled from YAML and the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import product
from math import inf
from typing import Any, Literal

from sparse_attn.engine.config import check_fields, valid_seed
from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED

Options = dict[str, int | float]
FREE = ("output_dir", "device", "resume")  # may change on resume


@dataclass(frozen=True)
class BottleneckRunConfig:
    """One head fitted to the targets of one seed. Defaults as in small.yaml.

    Args:
        output_dir: where results.json goes.
        alpha: concentration of the targets, P* ~ Dirichlet(alpha, ..., alpha).
        contexts: N, the number of targets, each with a free context vector.
        vocabulary: M, the number of words.
        dimension: D, the size of context and word vectors.
        head: softmax, sigsoftmax, mos, lms or plif.
        options: head options, such as `--options.components 15` for mos.
        learning_rate: Adam's initial learning rate, decayed linearly to 0.
        steps: optimiser steps.
        batch: contexts per step; memory grows with batch x M x components (units).
        seed: seed of the targets and initial vectors.
        device: auto (a GPU if available), cpu or cuda.
        resume: restart the interrupted run in output_dir.

    Raises:
        ValueError, TypeError: a value out of range, or an unknown head or option.
    """

    output_dir: str
    alpha: float = 0.1
    contexts: int = 2000
    vocabulary: int = 100
    dimension: int = 10
    head: str = "softmax"
    options: Options = field(default_factory=dict)
    learning_rate: float = 0.1
    steps: int = 800
    batch: int = 125
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    resume: bool = False

    def __post_init__(self) -> None:
        from experiments.bottleneck.heads import make_head

        check_fields(
            self,
            alpha=(0 < self.alpha < inf, "a finite number above 0"),
            counts=("contexts", "dimension", "steps"),
            vocabulary=(self.vocabulary > 1, "at least 2"),
            learning_rate=(0 < self.learning_rate < inf, "a finite number above 0"),
            batch=(0 < self.batch <= self.contexts, f"1 to contexts={self.contexts}"),
            seed=valid_seed(self.seed),
        )
        make_head(self.head, 1, 2, self.options)

    def comparable(self) -> dict[str, Any]:
        """Return the settings that determine the result; equal ones mean the same run."""
        return {key: value for key, value in asdict(self).items() if key not in FREE}


@dataclass(frozen=True)
class BottleneckSweepConfig:
    """Heads x vocabularies x dimensions x seeds under one budget.

    Every head gets the same steps, learning rates and seeds. The learning rate is chosen for each
    vocabulary and dimension by mean KL on held-out targets.

    Args:
        output_dir: folder for sweep.json and the runs.
        alphas: concentrations of the targets, P* ~ Dirichlet(alpha, ..., alpha).
        contexts: N, the number of targets, each with a free context vector.
        vocabularies: M, numbers of words.
        dimensions: D, sizes of context and word vectors.
        heads: a name (softmax, sigsoftmax, mos, lms, plif), then its options, such as
            `mos: {components: 15}`.
        learning_rates: Adam's initial learning rates, decayed linearly to 0; the best is used.
        steps: optimiser steps.
        batch: contexts per step; memory grows with batch x M x components (units).
        seeds: final runs per cell, with seeds 0, 1, ...; a seed draws targets and initial
            vectors.
        device: auto (a GPU if available), cpu or cuda.

    Raises:
        ValueError, TypeError: a value out of range, or an unknown head or option.
    """

    output_dir: str
    alphas: list[float]
    contexts: int
    vocabularies: list[int]
    dimensions: list[int]
    heads: dict[str, Options]
    learning_rates: list[float]
    steps: int
    batch: int
    seeds: int
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        for name in ("alphas", "vocabularies", "dimensions", "learning_rates"):
            values = getattr(self, name)
            if not 0 < len(values) == len(set(values)):
                raise ValueError(f"{name}={values}: expected one value or several different ones")
        check_fields(
            self,
            heads=(bool(self.heads), "at least one, such as `softmax: {}`"),
            seeds=(
                1 <= self.seeds <= FIRST_TRIAL_SEED,
                f"an integer in [1, {FIRST_TRIAL_SEED}]",
            ),
        )
        self.trials()  # validates the settings

    def content(self) -> dict[str, Any]:
        """Return the content of sweep.json: the settings that a continued sweep must keep."""
        return {key: value for key, value in asdict(self).items() if key not in FREE}

    def trials(self) -> dict[tuple[str, str], list[BottleneckRunConfig]]:
        """Return a trial per learning rate for each task and head, on held-out targets."""
        shared = {key: getattr(self, key) for key in ("contexts", "steps", "batch", "device")}
        found: dict[tuple[str, str], list[BottleneckRunConfig]] = {}
        for alpha, vocabulary, dimension, head, rate in product(
            self.alphas, self.vocabularies, self.dimensions, self.heads, self.learning_rates
        ):
            config = BottleneckRunConfig(
                output_dir="",
                alpha=alpha,
                vocabulary=vocabulary,
                dimension=dimension,
                head=head,
                options=self.heads[head],
                learning_rate=rate,
                seed=FIRST_TRIAL_SEED,
                **shared,
            )
            found.setdefault((task(alpha, vocabulary, dimension), head), []).append(config)
        return found


def task(alpha: float, vocabulary: int, dimension: int) -> str:
    """Return the task name: the setting at which heads are compared."""
    return f"alpha{alpha}-M{vocabulary}-D{dimension}"

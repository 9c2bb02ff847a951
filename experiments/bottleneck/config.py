"""What the experiment is: one dataclass, filled from YAML and the command line, and its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Options = dict[str, int | float]
# no final run has this seed: learning rates are chosen on targets that no result is measured on
SEARCH_SEED = 1_000


@dataclass(frozen=True)
class Cell:
    """Everything that decides the result of one run."""

    alpha: float
    contexts: int
    vocabulary: int
    dimension: int
    head: str
    options: Options
    learning_rate: float
    steps: int
    batch: int
    seed: int

    @property
    def name(self) -> str:
        """The file name of the record, unique within an experiment.

        That of a run that counts leaves out the learning rate: there is one such run a seed.
        """
        searched = self.seed == SEARCH_SEED
        run = f"lr{self.learning_rate:g}" if searched else f"seed{self.seed}"
        return f"alpha{self.alpha:g}-M{self.vocabulary}-D{self.dimension}-{self.head}-{run}.json"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the record holds them."""
        return asdict(self)


@dataclass(frozen=True)
class BottleneckConfig:
    """Heads x vocabularies x dimensions x seeds under one budget.

    Every head gets the same steps, the same learning rates to choose from (for each vocabulary and
    dimension, by mean KL on targets of a seed of their own) and the same seeds.

    Args:
        output_dir: where the records go, one file a run.
        alphas: concentrations of the targets, P* ~ Dirichlet(alpha, ..., alpha).
        contexts: N, the number of targets, each with a free context vector.
        vocabularies: M, numbers of words.
        dimensions: D, sizes of context and word vectors.
        heads: a name (softmax, sigsoftmax, mos, lms, plif), then its options, such as
            `mos: {components: 15}`.
        learning_rates: of Adam at the start, linear to 0; the best of them is used.
        steps: optimiser steps.
        batch: contexts a step; batch x M x components (units) bounds the memory.
        seeds: runs for each cell, with seeds 0, 1, ...; seed draws targets and initial vectors.
        device: such as cpu or cuda:1; the GPU if there is one when left out.

    Raises:
        ValueError, TypeError: a value out of range, an unknown head or option.
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
    device: str | None = None

    def __post_init__(self) -> None:
        from experiments.bottleneck.heads import make_head

        _check("alphas", self.alphas, 0, "a finite number above 0")
        _check("contexts", [self.contexts], 0, "at least 1")
        _check("vocabularies", self.vocabularies, 1, "at least 2")
        _check("dimensions", self.dimensions, 0, "at least 1")
        _check("learning_rates", self.learning_rates, 0, "a finite number above 0")
        _check("steps", [self.steps], 0, "at least 1")
        _check("batch", [self.batch], 0, "at least 1")
        if self.batch > self.contexts:
            raise ValueError(f"batch={self.batch}: expected at most contexts={self.contexts}")
        if not 1 <= self.seeds <= SEARCH_SEED:
            raise ValueError(f"seeds={self.seeds}: expected a whole number in [1, {SEARCH_SEED}]")
        if not self.heads:
            raise ValueError("heads: expected at least one, such as `softmax: {}`; got none")
        for head, options in self.heads.items():
            make_head(head, 1, 2, options)

    def cell(
        self,
        alpha: float,
        vocabulary: int,
        dimension: int,
        head: str,
        learning_rate: float,
        seed: int,
    ) -> Cell:
        """One run of the grid."""
        return Cell(
            alpha=alpha,
            contexts=self.contexts,
            vocabulary=vocabulary,
            dimension=dimension,
            head=head,
            options=self.heads[head],
            learning_rate=learning_rate,
            steps=self.steps,
            batch=self.batch,
            seed=seed,
        )


@dataclass(frozen=True)
class ReportConfig:
    """What to report on.

    Args:
        records_dir: folder of records, finished or not: *.json of runs or *.jsonl of `pack`.
        output_dir: where report.md and the figures go; records_dir if left out.
    """

    records_dir: str
    output_dir: str | None = None


@dataclass(frozen=True)
class PackConfig:
    """Records of many files as one.

    Args:
        records_dir: folder of records.
        file: the .jsonl file to write, one record a line.
    """

    records_dir: str
    file: str


def _check(name: str, values: Sequence[float], low: float, expected: str) -> None:
    """Raise unless there are values, all different, finite and above `low`."""
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{name}={list(values)}: expected one value or several different ones")
    for value in values:
        if not low < value < math.inf:
            raise ValueError(f"{name}: {value} is out of range: expected {expected}")

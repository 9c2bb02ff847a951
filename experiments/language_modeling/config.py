"""What a run and a sweep are: dataclasses, filled from YAML and the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any, Literal

from experiments.language_modeling.sections import (
    CorpusConfig,
    DynamicConfig,
    EvaluationConfig,
    HeadConfig,
    ModelConfig,
    StageConfig,
)
from pipeline.config import (
    check_baseline,
    check_fields,
    check_labels,
    check_rates,
    valid_seed,
)

BASELINE = "softmax"
# may differ between a run and its continuation
FREE = ("output_dir", "checkpoint_minutes", "device", "chunk", "resume")


@dataclass(frozen=True, kw_only=True)
class MeasuresConfig:
    """What to measure besides perplexity, top-10 error and the slopes of a PLIF.

    Args:
        rank_contexts: contexts of the test split in the matrix of log-probabilities; no rank if
            left out. The matrix takes 4 bytes a context and word.
        simlex: SimLex-999.txt, to correlate the embedding with; off by default.
        dynamic: dynamic evaluation on the validation and the test split; off by default.
    """

    rank_contexts: int | None = None
    simlex: str | None = None
    dynamic: DynamicConfig | None = None


@dataclass(frozen=True)
class MeasureConfig(MeasuresConfig):
    """What to measure of a run that has ended.

    Args:
        run_dir: its output_dir.
        data_dir: folder of the corpus; that of the run by default.
    """

    run_dir: str
    data_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class SetupConfig:
    """What the runs of a sweep share.

    Args:
        corpus: what to train on.
        model: what turns words into hidden states.
        train: how to train.
        finetune: a second stage, from the best weights of the first.
        evaluation: how perplexity is computed.
        measures: what else is measured in the end.
        precision: float32, or bfloat16: matrix products in bfloat16 (autocast).
        device: cpu or cuda; auto: cuda where there is one.
        chunk: rows of scores that the head holds at once.
    """

    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: StageConfig = field(default_factory=StageConfig)
    finetune: StageConfig | None = None
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    measures: MeasuresConfig = field(default_factory=MeasuresConfig)
    precision: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    chunk: int = 256

    def __post_init__(self) -> None:
        check_fields(self, counts=("chunk",))

    @property
    def uses_hub(self) -> bool:
        """Whether the corpus comes from the hub."""
        return self.corpus.data_dir is None

    def _deciding(self) -> dict[str, Any]:
        """What decides results: not where files lie, which may differ between machines."""
        content = {key: value for key, value in asdict(self).items() if key not in FREE}
        del content["corpus"]["data_dir"]
        if self.measures.simlex is not None:
            content["measures"]["simlex"] = PurePath(self.measures.simlex).name
        return content


@dataclass(frozen=True)
class RunConfig(SetupConfig):
    """One training run.

    Args:
        output_dir: where results.json, model.pt and checkpoint.pt go.
        head: what turns hidden states into probabilities.
        seed: of the first weights, the dropout and the lengths of the steps.
        checkpoint_minutes: write checkpoint.pt this often, and at the end of each epoch.
        resume: continue the interrupted run in output_dir.
    """

    output_dir: str
    head: HeadConfig = field(default_factory=HeadConfig)
    seed: int = 0
    checkpoint_minutes: float = 10.0
    resume: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(
            self,
            seed=valid_seed(self.seed),
            checkpoint_minutes=(self.checkpoint_minutes >= 0, "0 or more"),
        )

    def comparable(self) -> dict[str, Any]:
        """What decides a run's result: two runs that agree in this are the same run."""
        return self._deciding()


@dataclass(frozen=True)
class SweepConfig(SetupConfig):
    """Heads x seeds on one model and corpus.

    With one learning rate every run counts. With several each head tries all of them, with a seed
    of its own, and the runs that count get the best by perplexity on the validation split.

    Args:
        output_dir: where sweep.json and one record a run go.
        heads: a label for each head, and what it is. The others are compared with `softmax`.
        learning_rates: of the first stage, those to try.
        seeds: runs that count of each head, with seeds 0, 1, ...
    """

    output_dir: str
    heads: dict[str, HeadConfig]
    learning_rates: list[float]
    seeds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self)
        check_labels(self.heads)
        check_baseline("heads", self.heads, BASELINE)

    def run_of(self, head: HeadConfig, rate: float, seed: int) -> RunConfig:
        """One run of the sweep, which keeps nothing but its record."""
        shared = {key.name: getattr(self, key.name) for key in fields(SetupConfig)}
        shared["train"] = replace(self.train, learning_rate=rate)
        return RunConfig("", head, seed, **shared)

    def content(self) -> dict[str, Any]:
        """What sweep.json holds: what decides the results."""
        return self._deciding()

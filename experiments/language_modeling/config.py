"""Configs of runs and sweeps: dataclasses filled from YAML and the command line."""

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
from sparse_attn.engine.config import (
    check_baseline,
    check_fields,
    check_labels,
    check_rates,
    valid_seed,
)

BASELINE = "softmax"
# may change on resume
FREE = ("output_dir", "checkpoint_steps", "device", "chunk", "resume")


@dataclass(frozen=True)
class MeasuresConfig:
    """Measures besides perplexity, top-10 error and the slopes of a PLIF.

    Args:
        rank_contexts: test contexts in the matrix of log-probabilities, which takes 4 bytes per
            context and word; no rank by default.
        simlex: path of SimLex-999.txt, to evaluate the embedding; off by default.
        dynamic: dynamic evaluation on the validation and test splits; off by default.
    """

    rank_contexts: int | None = None
    simlex: str | None = None
    dynamic: DynamicConfig | None = None


@dataclass(frozen=True, kw_only=True)
class SetupConfig:
    """Settings shared by the runs of a sweep.

    Args:
        corpus: what to train on.
        model: the network below the head.
        train: how to train.
        finetune: a second stage, started from the best weights of the first.
        evaluation: how perplexity is computed.
        measures: further measures after training.
        precision: float32, or bfloat16: matrix products in bfloat16 (autocast).
        device: auto (a GPU if available), cpu or cuda.
        chunk: rows of scores held in memory at once.
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
        """Whether the corpus is downloaded from the hub."""
        return self.corpus.data_dir is None

    def _settings_of_result(self) -> dict[str, Any]:
        """Return the settings that determine the results, without paths."""
        content = {key: value for key, value in asdict(self).items() if key not in FREE}
        del content["corpus"]["data_dir"]
        if self.measures.simlex is not None:
            content["measures"]["simlex"] = PurePath(self.measures.simlex).name
        return content


@dataclass(frozen=True)
class LanguageRunConfig(SetupConfig):
    """One training run.

    Args:
        output_dir: folder for results.json, model.pt and checkpoint.pt.
        head: the output layer.
        seed: seed of the initial weights, dropout and variable step lengths.
        checkpoint_steps: steps between checkpoints; one is also written after each epoch.
        resume: continue the interrupted run in output_dir.
    """

    output_dir: str
    head: HeadConfig = field(default_factory=HeadConfig)
    seed: int = 0
    checkpoint_steps: int = 1000
    resume: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, seed=valid_seed(self.seed), counts=("checkpoint_steps",))
        stages = {"train": self.train, "finetune": self.finetune}
        for name, stage in stages.items() if self.head.kind == "factored" else ():
            if stage is not None:
                check_fields(
                    stage,
                    name,
                    optimizer=(stage.optimizer == "sgd", "sgd: a factored head has no other"),
                    average_from=(
                        stage.average_from == "never",
                        "never: a factored head has no average of its weights",
                    ),
                )

    def comparable(self) -> dict[str, Any]:
        """Return the settings that determine the result; equal ones mean the same run."""
        return self._settings_of_result()


@dataclass(frozen=True)
class LanguageSweepConfig(SetupConfig):
    """Heads x seeds on one model and corpus.

    With several learning rates, each head tries all of them on a separate seed, without `measures`,
    and the final runs use the one with the lowest validation perplexity.

    Args:
        output_dir: folder for sweep.json and the runs.
        heads: the heads, by label; `softmax` is the baseline.
        learning_rates: learning rates of the first stage to try.
        seeds: final runs per head, with seeds 0, 1, ...
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

    def run_of(self, head: HeadConfig, rate: float, seed: int) -> LanguageRunConfig:
        """One run of the sweep; only its record is kept."""
        shared = {key.name: getattr(self, key.name) for key in fields(SetupConfig)}
        shared["train"] = replace(self.train, learning_rate=rate)
        return LanguageRunConfig("", head, seed, **shared)

    def content(self) -> dict[str, Any]:
        """Return the content of sweep.json: the settings that determine the results."""
        return self._settings_of_result()

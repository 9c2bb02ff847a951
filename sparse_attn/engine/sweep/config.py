"""Configs that all sweeps share: seeds of trials, and resources of runs."""

from __future__ import annotations

from dataclasses import dataclass

# trials and final runs use different seeds, so that the choice does not fit a final seed
FIRST_TRIAL_SEED = 1000


@dataclass(frozen=True)
class Resources:
    """Choose the machines and processors for a sweep.

    Args:
        address: address of a Ray cluster, such as auto or ray://head:10001, or local for Ray on
            this machine; a local process pool by default. A cluster needs the packages, model and
            data on every machine.
        cpus_per_run: processors and threads per run.
        gpus_per_run: GPUs per run: 0, 1 or a share such as 0.25; by default 1 if there are any. A
            run is always one process, so that its batch size means the same everywhere.
        dry_run: print the remaining runs, time and disk space, and exit.
    """

    address: str | None = None
    cpus_per_run: int = 1
    gpus_per_run: float | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.cpus_per_run < 1:
            raise ValueError(f"cpus_per_run={self.cpus_per_run}: expected at least 1")
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run <= 1:
            raise ValueError(
                f"gpus_per_run={self.gpus_per_run}: expected a number in [0, 1]; a run of `glue` "
                "on several GPUs is `accelerate launch -m glue train`"
            )

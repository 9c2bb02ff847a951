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
            this machine; processes of this machine by default. All machines of a cluster need
            this environment and the working directory, in a shared folder.
        cpus_per_run: processors and threads per run.
        gpus_per_run: GPUs per run: 0, 1 or a share such as 0.25; by default 1 if there are any. A
            run is always one process, so that its batch size means the same everywhere.
        num_shards: number of jobs that share the sweep, as in a job array; each does whole pairs
            of task and mapping, so that none waits for the trials of another.
        shard: which of them this is, from 0.
        dry_run: print the runs that are due, and exit.
    """

    address: str | None = None
    cpus_per_run: int = 1
    gpus_per_run: float | None = None
    num_shards: int = 1
    shard: int = 0
    dry_run: bool = False

    def __post_init__(self) -> None:
        for name in ("cpus_per_run", "num_shards"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 1")
        if not 0 <= self.shard < self.num_shards:
            raise ValueError(f"shard={self.shard}: expected 0 to {self.num_shards - 1}")
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run <= 1:
            raise ValueError(
                f"gpus_per_run={self.gpus_per_run}: expected a number in [0, 1]; a run of `glue` "
                "on several GPUs is `accelerate launch -m glue train`"
            )

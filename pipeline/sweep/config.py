"""What configs of sweeps share: seeds of trials, and where runs take place."""

from __future__ import annotations

from dataclasses import dataclass

# seeds of trials stay clear of those of final runs: the best trial must not owe it to its seed
FIRST_TRIAL_SEED = 1000


@dataclass(frozen=True)
class Resources:
    """Where the runs of a sweep take place.

    Args:
        address: of a running Ray cluster, such as auto or ray://head:10001, or local for Ray on
            this machine; without it a pool of processes here. A cluster needs the packages
            installed, and model and data on every machine.
        cpus_per_run: processors, and threads, of one run.
        gpus_per_run: GPUs of one run: 0, 1 or a share of one such as 0.25; if left out, 1 where
            there are GPUs. A run is one process, so that its batch size means the same everywhere.
        dry_run: start none of them, and print how many are due.
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
                "on "
                "several GPUs is `accelerate launch -m glue train`"
            )

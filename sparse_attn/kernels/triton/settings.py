"""Launch settings for rows of several tiles: the best measured ones by GPU, and defaults."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from sparse_attn.kernels.triton.tuned import TABLES

KERNELS = ("inference", "forward", "queries", "keys")  # first forward without grad, then with
MEDIUM, LONG = "medium", "long"  # kinds of rows of several tiles
MEDIUM_KEYS = 1024  # most keys of a medium row


class Setting(NamedTuple):
    """Queries and keys of a tile, and the launch options of Triton."""

    block_m: int
    block_n: int
    warps: int = 4
    stages: int = 2
    registers: int | None = None  # most per thread

    @property
    def options(self) -> dict[str, int]:
        """Keyword arguments of the launch."""
        found = {"num_warps": self.warps, "num_stages": self.stages}
        return found if self.registers is None else {**found, "maxnreg": self.registers}


# Chosen from results/benchmarks/gpu-nvidia-h200.json: half precision and head_dim 64, on an H200.
# With 4 warps and 168 registers three programs share a multiprocessor, and two with the 210 to 240
# that the compiler would take. Three stages are left out where they were slower or where, with the
# limit, loops of the compiled code use local memory.
_STAGES = Setting(64, 64, stages=3)
_LIMIT = Setting(64, 64, registers=168)
_FORWARD = {
    "pointwise": _STAGES,  # the limit made softmax 2 to 4 % slower on long causal rows
    "projection": _LIMIT,  # mostly 13 to 22 % faster; three stages another 1 to 13 %, or slower
    "entmax": Setting(64, 64),  # its logarithms and exponentials need the registers
    # the limit is for the registers alone; smaller tiles and two stages keep local memory out of
    # the loops
    "r-softmax": Setting(64, 32, registers=168),
    "threshold": _STAGES,  # training with t-softmax 14 % faster
    "truncated": _LIMIT,  # 3 to 4 % faster; three stages slower
    "free": Setting(64, 64),  # three stages: inference 4 % faster, training 5 % slower
}
HOPPER = (9, 0)
# by compute capability, kernel, and mapping or family; none for 8.0, where products take more
# registers and a limit costs local memory in the loops
DEFAULTS: dict[tuple[int, int], dict[str, dict[str, Setting]]] = {
    HOPPER: {
        "inference": _FORWARD,
        "forward": _FORWARD,
        "queries": dict.fromkeys(_FORWARD, _STAGES),  # at most 5 % faster, never slower
        # tiles of 128 queries took 15 to 45 % longer; the limit made entmax and sparsemax 17 %
        # faster, at one access of local memory in a loop of sparsemax, and costs most others more
        "keys": {**dict.fromkeys(_FORWARD, Setting(64, 64)), "projection": _LIMIT},
    }
}
DEFAULT_BYTES = 128  # most bytes per row of keys for these defaults: more take more registers

Key = tuple[str, str, int, str]  # kernel, mapping or family, bytes per row of keys, kind of row
Table = dict[Key, Setting]


def best(
    device: torch.device, kernel: str, names: tuple[str, str], row_bytes: int, keys: int
) -> Setting | None:
    """Return the setting of a mapping, else of its family, in the device's table, or the default.

    None if there is none for so many bytes per row.
    """
    table = table_of(device)
    if table:  # otherwise a graph gets no guard on the length
        row = MEDIUM if keys <= MEDIUM_KEYS else LONG
        keys_of_names = ((kernel, name, row_bytes, row) for name in names)
        found = next((table[key] for key in keys_of_names if key in table), None)
        if found is not None:
            return found
    return default(device, kernel, names, row_bytes)


def default(
    device: torch.device, kernel: str, names: tuple[str, str], row_bytes: int
) -> Setting | None:
    """Return the default of a kernel for a mapping, else for its family, or None."""
    found = DEFAULTS.get(capability_of(device)) if row_bytes <= DEFAULT_BYTES else None
    return next(found[kernel][name] for name in names if name in found[kernel]) if found else None


@functools.cache
def capability_of(device: torch.device) -> tuple[int, int]:
    """Return the compute capability, or Hopper's without a GPU."""
    if device.type != "cuda":
        return HOPPER
    properties = torch.cuda.get_device_properties(device)
    return properties.major, properties.minor


@functools.cache
def table_of(device: torch.device) -> Table:
    """Return the table of this GPU, or of one with the same compute capability."""
    if device.type != "cuda":
        return {}
    return choose(torch.cuda.get_device_properties(device).name, capability_of(device))


def choose(name: str, capability: tuple[int, int]) -> Table:
    """Choose the table by name or capability; empty if nothing was measured."""
    same_capability = [device for device, (own, *_) in TABLES.items() if own == capability]
    chosen = name if name in TABLES else next(iter(same_capability), None)
    if chosen is None:
        return {}
    sources = TABLES[chosen][1].values()
    return {k: Setting(*row) for rows in sources for k, row in rows.items()}

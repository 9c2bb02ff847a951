"""Launch settings of a kernel, and the best measured ones by GPU."""

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


Key = tuple[str, str, int, str]  # kernel, mapping or family, bytes per row of keys, kind of row
Table = dict[Key, Setting | None]


def best(
    device: torch.device, kernel: str, names: tuple[str, ...], row_bytes: int, keys: int
) -> Setting | None:
    """Return the setting of the first of `names` in the device's table; None for the default."""
    table = table_of(device)
    if not table:  # so that a graph gets no guard on the length
        return None
    row = MEDIUM if keys <= MEDIUM_KEYS else LONG
    keys_of_names = ((kernel, name, row_bytes, row) for name in names)
    return next((table[key] for key in keys_of_names if key in table), None)


@functools.cache
def table_of(device: torch.device) -> Table:
    """Return the table of this GPU, or of one with the same compute capability."""
    if device.type != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(device)
    return choose(properties.name, (properties.major, properties.minor))


def choose(name: str, capability: tuple[int, int]) -> Table:
    """Choose the table by name or capability; empty if nothing was measured."""
    same_capability = [device for device, (own, *_) in TABLES.items() if own == capability]
    chosen = name if name in TABLES else next(iter(same_capability), None)
    if chosen is None:
        return {}
    sources = TABLES[chosen][1].values()
    return {k: row and Setting(*row) for rows in sources for k, row in rows.items()}

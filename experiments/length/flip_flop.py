"""The task: a flip-flop, of which a model reads the last written bit (Liu et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.length.task import IGNORED, Task

WRITE, IGNORE, READ = 2, 3, 4  # after the bits 0 and 1
P_WRITE = P_READ = 0.1  # FFL(0.8) in the paper


def flip_flop(
    batch: int, length: int, symbols: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw texts of pairs of an instruction and a bit.

    The first instruction is a write, the last a read. The bit of a read is that of the last write,
    and the model is to predict it; other bits are random.

    Args:
        length: an even number, at least 4.
        symbols: not used; there are five.
    """
    count = length // 2
    chance = torch.rand(batch, count, generator=generator)
    instructions = torch.full((batch, count), IGNORE)
    instructions[chance < P_WRITE + P_READ] = READ
    instructions[chance < P_WRITE] = WRITE
    instructions[:, 0], instructions[:, -1] = WRITE, READ
    written = torch.where(instructions == WRITE, torch.arange(count), 0).cummax(1).values
    bits = torch.randint(2, (batch, count), generator=generator)
    is_read = instructions == READ
    bits = torch.where(is_read, bits.gather(1, written), bits)
    tokens = torch.stack([instructions, bits], dim=-1).flatten(1)
    labels = torch.full_like(tokens, IGNORED)
    labels[:, 1::2] = torch.where(is_read, bits, IGNORED)
    return tokens, labels


FLIP_FLOP = Task(
    flip_flop,
    unit=2,
    least_length=4,
    least_symbols=lambda length: READ + 1,
    shortest=lambda longest: longest // 2,
)

"""A task of the study: texts of a length, and the limits of its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IGNORED = -100


class Task(NamedTuple):
    """A task.

    Attributes:
        draw: returns tokens (batch, length), and labels of the same shape, `IGNORED` but for the
            symbols to predict. Arguments: batch, length, number of symbols, generator.
        unit: of which a length is a multiple.
        least_length: of a text.
        least_symbols: least number of symbols for texts of a length.
        shortest: tokens of the shortest text in training, given those of the longest.
    """

    draw: Callable[[int, int, int, torch.Generator], tuple[Tensor, Tensor]]
    unit: int
    least_length: int
    least_symbols: Callable[[int], int]
    shortest: Callable[[int], int]

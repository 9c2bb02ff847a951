"""The task: multi-query recall of associations, as in the paper of ASEntmax, with fewer symbols."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from experiments.length.task import IGNORED, Task

QUERIES = 4
PART = 2  # symbols of a key, and of a value
UNIT = 2 * PART
LEAST_LENGTH = 2 * QUERIES * UNIT


def recall(
    batch: int, length: int, symbols: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw texts of pairs of a key and its value, followed by QUERIES of the pairs again.

    A key and a value are two symbols each, and the keys of a text differ. The model is to predict
    the values of the queries.

    Args:
        length: a multiple of UNIT, at least LEAST_LENGTH.

    Returns:
        Tokens (batch, length), and labels of the same shape, IGNORED but for these values.
    """
    count = length // UNIT - QUERIES
    keys = torch.rand(batch, symbols**PART, generator=generator).topk(count).indices
    values = torch.randint(symbols**PART, (batch, count), generator=generator)
    asked = torch.rand(batch, count, generator=generator).topk(QUERIES).indices
    order = torch.cat([torch.arange(count).expand(batch, -1), asked], dim=1)
    keys, values = keys.gather(1, order), values.gather(1, order)
    parts = [keys // symbols, keys % symbols, values // symbols, values % symbols]
    tokens = torch.stack(parts, dim=-1).flatten(1)
    labels = torch.full_like(tokens, IGNORED)
    is_value = torch.arange(UNIT) >= PART
    labels[:, count * UNIT :] = torch.where(
        is_value.repeat(QUERIES), tokens[:, count * UNIT :], IGNORED
    )
    return tokens, labels


RECALL = Task(
    recall,
    unit=UNIT,
    least_length=LEAST_LENGTH,
    least_symbols=lambda length: math.isqrt(length // UNIT) + 1,
    shortest=lambda longest: longest,
)

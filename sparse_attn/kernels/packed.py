"""Packed sequences: one after another in a batch of one, and the boundaries `cu_seqlens`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def check_packed(cu_seqlens: Tensor, query: Tensor, key: Tensor) -> None:
    """Raise for boundaries that do not fit these tensors.

    The values are checked only on the CPU in eager mode.

    Raises:
        ValueError: wrong dtype, shape or values, a batch above 1, or queries and keys of different
            lengths.
    """
    whole = cu_seqlens.dtype in (torch.int32, torch.int64)
    if not whole or cu_seqlens.dim() != 1 or len(cu_seqlens) < 2:
        raise ValueError(
            "cu_seqlens: expected int32 or int64 of shape (sequences + 1,), the start of each "
            f"sequence and the end of the last, got {cu_seqlens.dtype} of shape "
            f"{tuple(cu_seqlens.shape)}"
        )
    if query.shape[0] != 1 or key.shape[2] != query.shape[2]:
        raise ValueError(
            "cu_seqlens: expected a batch of 1 and a key for each query, got query of shape "
            f"{tuple(query.shape)} and key of shape {tuple(key.shape)}; join the sequences along "
            "their length, and pass no keys of a cache"
        )
    plain = type(cu_seqlens) is Tensor and not torch.compiler.is_compiling()
    if plain and cu_seqlens.device.type == "cpu":
        boundaries(cu_seqlens, query.shape[2])


def boundaries(cu_seqlens: Tensor, length: int) -> list[int]:
    """Return the values of cu_seqlens, which synchronises a GPU.

    Raises:
        ValueError: they do not divide `length` tokens.
    """
    values: list[int] = cu_seqlens.tolist()
    if values[0] != 0 or values[-1] != length or any(a > b for a, b in pairwise(values)):
        shown = ", ".join(
            map(str, values if len(values) <= 8 else [*values[:6], "...", values[-1]])
        )
        raise ValueError(
            f"cu_seqlens: expected numbers rising from 0 to the length of query, {length}, got "
            f"[{shown}]"
        )
    return values


def own_sequence(cu_seqlens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the begin and the end of each token's sequence, (length,) int64 each."""
    starts = cu_seqlens.long()
    tokens = torch.arange(length, device=starts.device)
    number = torch.searchsorted(starts, tokens, right=True)  # skips empty sequences
    return starts[number - 1], starts[number]

"""Exact attention weights of a call as sparse rows, without storing queries x keys."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_attn.kernels import cpu, reference
from sparse_attn.kernels.inputs import AttentionInputs, fold_weights
from sparse_attn.kernels.operators import OperatorInputs

MASKED = 2**24  # most entries of a mask for chosen queries


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Attention weights of one call of a layer: the weights p > threshold, before dropout.

    `rows[sequence, head]` is the matrix (queries, keys) of one head as `torch.sparse_csr`, without
    a copy. Packed sequences are one sequence, with a block for each.

    Attributes:
        heads: numbers of the heads that were kept.
        queries: indices in the call of the queries that were kept, in order.
        keys: number of keys of the call.
        first: position of the call's first query in its sequence if its keys are a growing cache;
            query i is then at position first + i.
        starts: start of each row in `columns`, and the last end, (B, heads, queries + 1), int64.
        columns: index of the key of each weight, rising in each row, (entries,), int32.
        weights: p in float32 (float64 for float64 inputs), (entries,); NaN in a row of NaN.
        threshold: as given.
    """

    heads: list[int]
    queries: list[int]
    keys: int
    first: int
    starts: Tensor
    columns: Tensor
    weights: Tensor
    threshold: float

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        return f"SparseRows({batch} x {heads} x {queries} x {keys}, weights={len(self.weights):,})"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Number of sequences, heads, queries and keys."""
        return len(self.starts), len(self.heads), len(self.queries), self.keys

    def __getitem__(self, place: tuple[int, int]) -> Tensor:
        """Return the weights of (sequence, head), (queries, keys), torch.sparse_csr.

        Raises:
            IndexError: the head was not kept, or there is no such sequence.
        """
        starts, columns, weights = self._parts(*place)
        with warnings.catch_warnings():
            # torch 2.11 warns that checks are off implicitly where they are turned off explicitly
            warnings.filterwarnings(
                "ignore", "Sparse (CSR tensor support is in beta|invariant checks)"
            )
            return torch.sparse_csr_tensor(
                starts, columns, weights, (len(self.queries), self.keys), check_invariants=False
            )

    def _parts(self, sequence: int, head: int) -> tuple[Tensor, Tensor, Tensor]:
        if head not in self.heads:
            raise IndexError(f"head {head} was not kept; the heads are {self.heads}")
        starts = self.starts[sequence, self.heads.index(head)]
        own = slice(int(starts[0]), int(starts[-1]))
        # SciPy and torch want indices of one type
        return (starts - starts[0]).int(), self.columns[own], self.weights[own]

    def to_scipy(self) -> dict[tuple[int, int], Any]:
        """Return each (sequence, head) as `scipy.sparse.csr_array`, on the CPU."""
        from scipy.sparse import csr_array

        found = {}
        for sequence in range(len(self.starts)):
            for head in self.heads:
                parts = self._parts(sequence, head)
                starts, columns, weights = (part.cpu().numpy() for part in parts)
                shape = (len(self.queries), self.keys)
                found[sequence, head] = csr_array((weights, columns, starts), shape)
        return found

    def to_npz(self, path: str | Path) -> None:
        """Write the attributes to a file for `numpy.load`.

        Args:
            path: the file, ending in .npz.
        """
        arrays: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        arrays = {n: v.cpu() if isinstance(v, Tensor) else v for n, v in arrays.items()}
        np.savez_compressed(path, **arrays)


Part = tuple[Tensor, Tensor, Tensor]  # weights of each row, (B, H, Q); columns; weights


@torch.no_grad()
def sparse_rows(
    inputs: AttentionInputs,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
    threshold: float = 0.0,
) -> SparseRows:
    """Compute a call's weights above a threshold, in the CPU kernels where they support it.

    Elsewhere the reference computes them, a block of queries at a time.

    Args:
        heads, queries: those to keep, None for all. Negative ones count from the end; queries that
            the call does not have are left out.

    Raises:
        IndexError: the call has no such head.
    """
    _, count, length, keys = inputs.shape
    kept = list(range(count)) if heads is None else [_head(head, count) for head in heads]
    chosen = list(range(length)) if queries is None else _present(queries, length)
    index = None if queries is None else torch.tensor(chosen, device=inputs.query.device).long()
    folded = fold_weights(replace(inputs, dropout=0.0, need_statistics=False))
    # a call that wants weights has hooks, which the reference runs
    by_kernel = not inputs.need_weights and cpu.unsupported_reason(folded) is None
    parts = list((_by_kernel if by_kernel else _by_reference)(folded, kept, index, threshold))
    counts, columns, weights = parts[0] if len(parts) == 1 else _joined(parts)
    ends = counts.flatten().cumsum(0).view(counts.shape)
    starts = torch.cat([ends[..., :1] - counts[..., :1], ends], dim=2)
    first = max(0, keys - length)
    return SparseRows(kept, chosen, keys, first, starts, columns, weights, threshold)


def _head(head: int, count: int) -> int:
    if not -count <= head < count:
        raise IndexError(f"heads: there is no head {head}; the layer has {count}")
    return head % count


def _present(queries: Sequence[int], length: int) -> list[int]:
    return sorted({query % length for query in queries if -length <= query < length})


def _by_kernel(
    inputs: AttentionInputs, heads: list[int], queries: Tensor | None, threshold: float
) -> Iterator[Part]:
    batch, _, _, keys = inputs.shape
    calls = [inputs]
    if queries is not None:
        step = max(1, MASKED // max(1, batch * keys))
        calls = [reference.of_queries(inputs, rows) for rows in queries.split(step)]
    for call in calls:
        given = _of_heads(call.for_operator(), heads)
        yield cpu.list_weights(given, threshold)


def _of_heads(given: OperatorInputs, heads: list[int]) -> OperatorInputs:
    """Return the call of these heads alone; the values, which do not matter, are cut."""
    _, count, _, _ = given.query.shape
    given = given._replace(value=given.value[..., :1])
    if heads == list(range(count)):
        return given
    groups = count // given.key.shape[1]
    of_keys = [head // groups for head in heads]

    def select(tensor: Tensor | None) -> Tensor | None:
        by_head = tensor is not None and tensor.dim() > 2 and tensor.shape[-3] > 1
        return tensor[..., heads, :, :] if tensor is not None and by_head else tensor

    return given._replace(
        query=given.query[:, heads],
        key=given.key[:, of_keys],
        value=given.value[:, of_keys],
        parameter=given.parameter[heads],
        sink=None if given.sink is None else given.sink[heads],
        bias=select(given.bias),
        mask=select(given.mask),
    )


def _by_reference(
    inputs: AttentionInputs, heads: list[int], queries: Tensor | None, threshold: float
) -> Iterator[Part]:
    found = False
    for _, weights, _ in reference.blocks(inputs, queries):
        found = True
        weights = weights[:, heads]
        kept = ~(weights <= threshold)  # NaN too
        yield kept.sum(-1), kept.nonzero()[:, 3].int(), weights[kept]
    if not found:  # no queries
        batch = len(inputs.query)
        empty = inputs.query.new_zeros(0)
        yield empty.new_zeros(batch, len(heads), 0).long(), empty.int(), empty.float()


def _joined(parts: list[Part]) -> Part:
    """Join parts that have different queries of the same heads."""
    counts = torch.cat([counts for counts, _, _ in parts], dim=2)
    sizes = [part[0].sum(2).flatten().tolist() for part in parts]
    joined = (
        torch.cat([piece for pieces in zip(*split, strict=True) for piece in pieces])
        for split in (
            [part[field].split(size) for part, size in zip(parts, sizes, strict=True)]
            for field in (1, 2)
        )
    )
    columns, weights = joined
    return counts, columns, weights

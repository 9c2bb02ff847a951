"""Attention over one long text: its sum over layers and heads, and some heads exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from sparse_attn.hf.layers import attention_layers, root_of
from sparse_attn.inspection.hooks import Hook
from sparse_attn.inspection.record import AttentionRecord
from sparse_attn.inspection.recording import record_attention
from sparse_attn.kernels.sparse_rows import SparseRows


@dataclass
class Rows:
    """Weights of queries 0 to N - 1, row by row.

    Attributes:
        starts: start of each row in the others, and the last end, (N + 1,).
        columns: positions of the keys, rising in each row.
        weights: float32.
    """

    starts: Tensor
    columns: Tensor
    weights: Tensor


@dataclass
class AttentionSum:
    """Result of `sum_attention` for a text of N tokens.

    Attributes:
        record: statistics of all layers and heads.
        total: sum of the weights above the threshold over layers and heads, (N, N), float32.
        heads: exact weights of each (layer, head) that was asked for.
        queries: number of tokens that have attended; of a generated text, the last has not.
    """

    record: AttentionRecord
    total: Tensor
    heads: dict[tuple[int, int], Rows] = field(default_factory=dict)
    queries: int = 0

    def cut(self, length: int) -> AttentionSum:
        """Return the sum of a text that has ended early, with this number of tokens."""
        return replace(self, total=self.total[:length, :length].clone())


@dataclass
class _Layer:
    """Sums one layer's calls; the rows of a call are dropped when they are summed."""

    sums: AttentionSum
    name: str
    number: int
    wanted: list[int]  # heads, with negative ones from the end
    last: int = 0  # end of the latest queries
    kept: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = field(default_factory=dict)

    def add(self, *_: object) -> None:
        """Forward hook of the attention module."""
        calls = self.sums.record.sparse[self.name]
        while calls:
            self._add(calls.pop(0))

    def _add(self, rows: SparseRows) -> None:
        batch, heads, queries, keys = rows.shape
        if batch != 1:
            raise ValueError(f"expected one text, got a batch of {batch}")
        # a module may run several times in one pass, as the shared layer of ALBERT
        first, size = self.sums.queries, len(self.sums.total)
        last = first + queries
        if last > size:
            raise ValueError(f"expected {size} tokens, got {last}")
        # a window holds the latest keys, and a static cache more keys than there are yet
        offset = max(0, last - keys)
        if len(rows.columns) and int(rows.columns.max()) + offset >= last:
            raise ValueError(
                f"{self.name} attends to tokens that were read before; start with an empty cache"
            )
        counts = rows.starts[0].diff().cpu()  # [H, Q]
        columns, weights = rows.columns.cpu().long() + offset, rows.weights.float().cpu()
        own = torch.arange(first, last).expand(heads, -1).flatten()
        index = own.repeat_interleave(counts.flatten()) * size + columns
        self.sums.total.view(-1).index_add_(0, index, weights)
        ends = counts.sum(1).cumsum(0).tolist()
        if self.wanted and last == self.last:
            raise ValueError(f"heads: {self.name} is several layers, whose heads have no numbers")
        for head in {head % heads for head in self.wanted if -heads <= head < heads}:
            part = slice(ends[head] - int(counts[head].sum()), ends[head])
            piece = counts[head], columns[part], weights[part]
            self.kept.setdefault(head, []).append(piece)
        self.last = last

    def finish(self) -> None:
        self.sums.queries = max(self.sums.queries, self.last)
        for head, parts in sorted(self.kept.items()):
            counts, columns, weights = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
            starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            self.sums.heads[self.number, head] = Rows(starts, columns, weights)


@contextmanager
def sum_attention(
    model: nn.Module,
    length: int,
    heads: Iterable[tuple[int, int]] = (),
    threshold: float = 0.0,
) -> Iterator[AttentionSum]:
    """Sum the attention over one text: `with sum_attention(model, n) as found: model(ids)`.

    The text may be read in several calls with a growing cache, as `generate` does. Memory: (N, N)
    numbers, and the weights of one layer at a time.

    Args:
        length: number of tokens N, generated ones included.
        heads: (layer, head) pairs to keep exactly.
        threshold: as `record_attention`; needed for mappings without exact zeros.

    Raises:
        ValueError: as `record_attention`; or the calls read several texts, or more than N tokens.
    """
    wanted: dict[int, list[int]] = {}
    for layer, head in heads:
        wanted.setdefault(layer, []).append(head)
    root = root_of(model)
    modules = {layer.name: layer.module for layer in attention_layers(root)}
    with record_attention(model, weights="sparse", threshold=threshold) as record:
        found = AttentionSum(record, torch.zeros(length, length, dtype=torch.float32))
        sums, handles = [], []
        for number, name in enumerate(record.sparse):
            own = _Layer(found, name, number, wanted.get(number, []))
            sums.append(own)
            handles.append(modules[name].register_forward_hook(Hook(own.add)))
        end = Hook(lambda *_: setattr(found, "queries", max(layer.last for layer in sums)))
        handles.append(root.register_forward_hook(end))
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
        for own in sums:
            own.finish()

"""Record of a model's attention: statistics per layer and head, parameters over the calls."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.inspection.by_layer import LayerRows, LayerTensors
from sparse_attn.kernels.statistics import COLUMNS
from sparse_attn.mappings import Mapping, get_spec

MOST_SNAPSHOTS = 1000


def largest_weight(mapping: str) -> float:
    """Return the largest weight of a mapping: 1, or the largest float32 for unbounded rows."""
    try:
        free = get_spec(mapping).mass == "free"
    except ValueError:  # in a record from another program
        free = False
    return torch.finfo(torch.float32).max if free else 1.0


class ZeroCounts:
    """Exact zeros and all (valid query, valid key) pairs, as `counts` (2, layers, heads)."""

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts

    @property
    def per_head(self) -> list[list[float]]:
        """Share of exact zeros in each head of each layer, in model order."""
        return _shares(self.counts)

    @property
    def per_layer(self) -> list[float]:
        """Share of exact zeros in each layer, in model order."""
        return _shares(self.counts.sum(2))

    @property
    def mean(self) -> float:
        """Share of exact zeros over all layers."""
        return _shares(self.counts.sum((1, 2)))


def _shares(counts: Tensor) -> Any:
    zeros, pairs = counts.double()
    return (zeros / pairs.clamp(min=1)).tolist()


class AttentionRecord:
    """The result of `record_attention`. Numbers are float64 on the CPU.

    A key is valid if some query may attend to it. In self-attention with as many queries as keys a
    query is valid if its own key is, so padding counts on neither side; elsewhere every query with
    a valid key counts. NaN marks what was not seen (a layer that did not run, a head that a layer
    does not have) and rows with NaN. Values are in float32 (float64 for float64 inputs), before
    dropout and before rounding to half precision. Made by `record_attention`.

    Args:
        layers: qualified names of the attention modules, in model order.
        mappings: the mapping name of each.

    Attributes:
        layers, mappings: as given.
        calls: number of the forward call, from 1, of each snapshot in `parameters`; calls of only a
            part of the model, such as an encoder, have none.
        weights: with weights=True, p of each layer's last call, by the layer's name or number,
            (B, H, Q, K), on the layer's device, in float32 (float64 for float64 inputs).
        received: with received=True, the mass that key j received in each layer's last call, sum_i
            p_ij over the valid queries i (in cross-attention over all), by the layer's name or
            number, (B, H, K), on the layer's device.
        valid: with weights=True, the keys that each query of that call may attend to, bool,
            broadcastable to its weights, a list over the layers; None for all.
        crosses: with weights=True, whether that call was cross-attention, a list over the layers.
        sparse: with weights="sparse", the `SparseRows` of every call, by the layer's name or
            number.
        rows: number of sequences of a batch to count, from the first; None for all.
    """

    def __init__(self, layers: list[str], mappings: list[str]) -> None:
        self.layers, self.mappings = layers, mappings
        self.calls: list[int] = []
        self.weights = LayerTensors("weights", layers)
        self.received = LayerTensors("received", layers)
        self.valid: list[Tensor | None] = [None] * len(layers)
        self.crosses = [False] * len(layers)
        self.sparse = LayerRows(layers)
        self.rows: int | None = None
        self._sums: list[Tensor | None] = [None] * len(layers)  # [heads, positions, COLUMNS]
        self._snapshots: list[list[dict[str, float | Tensor]]] = []  # call, layer, parameter
        self._count, self._stride = 0, 1

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return (
            f"AttentionRecord(layers={len(self.layers)}, "
            f"mappings={list(dict.fromkeys(self.mappings))}, calls={self._count}, "
            f"zeros={self.mean:.1%})"
        )

    @property
    def zeros(self) -> Tensor:
        """Share of exact zeros among the pairs of valid queries and keys, (layers, heads)."""
        return 1 - self._ratio("support", "valid")

    @property
    def support(self) -> Tensor:
        """Mean number of keys with p > 0 of a valid query, (layers, heads)."""
        return self._ratio("support", "rows")

    @property
    def entropy(self) -> Tensor:
        """Mean of -sum q log q, q = p / sum p, over valid queries, in nats, (layers, heads).

        A row of zeros has entropy 0.
        """
        return self._ratio("entropy", "rows")

    @property
    def mass(self) -> Tensor:
        """Mean of sum p over valid queries, (layers, heads): 1 if the mapping is a distribution.

        At most 1 with a sink, softpick or clipped softmax (zeta = 1), unbounded with sigmoid or
        relu.
        """
        return self._ratio("mass", "rows")

    @property
    def special(self) -> Tensor:
        """Mean mass on special tokens, (layers, heads), between 0 and `mass`.

        NaN without special_ids, and if the keys are not the tokens of one call (a cache, images).
        The keys of cross-attention are the tokens that the encoder read last.
        """
        return self._ratio("special", "named")

    @property
    def support_by_position(self) -> Tensor:
        """Mean support of the queries at each position, (layers, heads, positions).

        With a growing cache, it is the position of the query's own key. With a fixed length
        (static, sliding window) it is unknown, and the query counts at the end.
        """
        return self._ratio("support", "rows", by_position=True)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Values of the mappings' parameters over the calls, by name, (snapshots, layers, heads).

        At most a thousand snapshots, evenly spaced: of more calls, every second, fourth, ... is
        kept. NaN if a layer's mapping has no such parameter or derives its value by row.
        """
        names = {name for call in self._snapshots for layer in call for name in layer}
        shape = (len(self._snapshots), len(self.layers), self._heads())
        found = {name: torch.full(shape, torch.nan, dtype=torch.double) for name in sorted(names)}
        for i, call in enumerate(self._snapshots):
            for j, layer in enumerate(call):
                sums = self._sums[j]
                for name, value in layer.items():
                    each = torch.as_tensor(value, dtype=torch.double).flatten().cpu()
                    heads = shape[2] if sums is None else len(sums)
                    found[name][i, j, : heads if len(each) == 1 else len(each)] = each
        return found

    @property
    def zero_counts(self) -> ZeroCounts:
        """Counts of exact zeros and of all valid pairs, to be summed over processes."""
        valid, support = self._of_heads("valid"), self._of_heads("support")
        # a row of NaN stays NaN, because a diverged run is not sparse
        unseen = valid.isnan()
        counts = torch.stack([valid - support, valid])
        return ZeroCounts(counts.masked_fill(unseen, 0.0))

    @property
    def mean(self) -> float:
        """Share of exact zeros over all layers; NaN where nothing was seen."""
        counts = self.zero_counts
        return counts.mean if counts.counts[1].any() else math.nan

    def table(self) -> str:
        """One line per layer, means over its heads; "-" if nothing was seen, nan if NaN was.

        Columns: `zeros`, the share of exact zeros; `support`, the number of keys that a query
        reads; `entropy` in nats; `special`, the share of the mass on the tokens of special_ids, "-"
        without them. The mass has a column unless it is 1 everywhere; `special` is then a part of
        the mass, not a share.
        """
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if place < 2 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )

    def _repr_html_(self) -> str:
        """`table` for a notebook."""
        head, *rows = ([escape(cell) for cell in row] for row in self._rows())
        lines = [f"<tr><th>{'</th><th>'.join(head)}</th></tr>"]
        lines += [f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows]
        return f"<table>{''.join(lines)}</table>"

    def _rows(self) -> list[list[str]]:
        """Return the cells of `table`, headings first."""
        table = {
            "layer": self.layers,
            "mapping": self.mappings,
            "zeros": self._cells(self.zeros * 100, "rows", ".1f", "%"),
            "support": self._cells(self.support, "rows", ".1f"),
            "entropy": self._cells(self.entropy, "rows", ".2f"),
            "mass": self._cells(self.mass, "rows", ".2f"),
            "special": self._cells(self.special, "named", ".2f"),
        }
        if {"1.00", "nan", "-"}.issuperset(table["mass"]):
            del table["mass"]
            table["special"] = self._cells(self.special * 100, "named", ".1f", "%")
        return [list(table), *map(list, zip(*table.values(), strict=True))]

    def _cells(self, values: Tensor, count: str, form: str, unit: str = "") -> list[str]:
        """Format each layer's mean over the heads with a `count` above 0."""
        seen = self._of_heads(count) > 0
        means = [row[of].mean().item() for row, of in zip(values, seen, strict=True)]
        found = zip(means, seen.any(-1).tolist(), strict=True)
        return [f"{mean:{form}}{unit}" if any_ else "-" for mean, any_ in found]

    def _of_heads(self, name: str, by_position: bool = False) -> Tensor:
        """Join the sums of one statistic, (layers, heads) or (layers, heads, positions)."""
        positions = max((len(s[0]) for s in self._sums if s is not None), default=0)
        shape = (len(self.layers), self._heads(), positions)
        joint = torch.full(shape, torch.nan, dtype=torch.double)
        for i, sums in enumerate(self._sums):
            if sums is not None:
                joint[i, : len(sums)] = 0
                joint[i, : len(sums), : len(sums[0])] = sums[..., COLUMNS.index(name)]
        return joint if by_position else joint.sum(-1)

    def _ratio(self, name: str, count: str, by_position: bool = False) -> Tensor:
        # 0 / 0 is NaN where no query was seen
        return self._of_heads(name, by_position) / self._of_heads(count, by_position)

    def _heads(self) -> int:
        seen = [len(sums) for sums in self._sums if sums is not None]
        values = (v for call in self._snapshots for layer in call for v in layer.values())
        held = [value.numel() for value in values if isinstance(value, Tensor)]
        return max((*seen, *held, 1))

    def _snapshot(self, mappings: list[Mapping | None]) -> None:
        """Store the parameters' values at the start of a forward call."""
        if [mapping and mapping.name for mapping in mappings] != self.mappings:
            raise RuntimeError(
                "the model was patched or unpatched while being recorded; do so before the "
                "record_attention block, which sums over its calls"
            )
        self._count += 1
        if (self._count - 1) % self._stride:
            return
        self.calls.append(self._count)
        self._snapshots.append([_values(mapping) for mapping in mappings if mapping])
        if len(self._snapshots) > MOST_SNAPSHOTS:
            self.calls, self._snapshots = self.calls[::2], self._snapshots[::2]
            self._stride *= 2

    def _add(self, layer: int, rows: Tensor, first: int) -> None:
        """Sum the statistics of one call, (B, H, Q, COLUMNS), from the position `first` on."""
        precise = torch.float32 if rows.device.type == "mps" else torch.float64
        sums = rows[: self.rows].sum(0, dtype=precise)  # [H, Q, COLUMNS]
        last = first + sums.shape[1]
        joint = self._sums[layer]
        if joint is None:
            joint = sums.new_zeros(len(sums), last, len(COLUMNS))
        if joint.shape[1] < last:
            joint = F.pad(joint, (0, 0, 0, last - joint.shape[1]))
        joint[:, first:last] += sums
        self._sums[layer] = joint


def _values(mapping: Mapping) -> dict[str, float | Tensor]:
    values = {p.name: mapping.value(p.name) for p in mapping.spec.parameters if not p.per_entry}
    # copied, because learned values change in place; on the device, not to wait for the GPU
    return {
        n: v.detach().clone() if isinstance(v, Tensor) else v
        for n, v in values.items()
        if v is not None
    }

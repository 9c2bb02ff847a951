"""What attention does in a model, gathered call by call without keeping the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from sparse_attn.attention import NAME, NOT_PATCHED, OBSERVER, Unsaved
from sparse_attn.inspection.hooks import Hook
from sparse_attn.inspection.tokens import SpecialKeys, can_cross, is_crossing
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.statistics import COLUMNS
from sparse_attn.layers import AttentionLayer, attention_layers, root_of
from sparse_attn.patching import is_patched, patched
from sparse_attn.records import configs_of, set_record

MOST_SNAPSHOTS = 1000


class ZeroCounts:
    """Exact zeros and all pairs (valid query, valid key): counts (2, layers, heads)."""

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts

    @property
    def per_head(self) -> list[list[float]]:
        """Share of exact zeros in each head of each layer, in the order of the model."""
        return _shares(self.counts)

    @property
    def per_layer(self) -> list[float]:
        """Share of exact zeros in each layer, in the order of the model."""
        return _shares(self.counts.sum(2))

    @property
    def mean(self) -> float:
        """Share of exact zeros over all layers."""
        return _shares(self.counts.sum((1, 2)))


def _shares(counts: Tensor) -> Any:
    zeros, pairs = counts.double()
    return (zeros / pairs.clamp(min=1)).tolist()


class AttentionRecord:
    """What `record_attention` gathers. Numbers are float64 on the CPU.

    A key is valid where some query may attend to it. In self-attention with as many queries as keys
    a query is valid where its own key is, so that padding counts on neither side; elsewhere every
    query that has a valid key counts. NaN stands where nothing was seen (a layer that did not run,
    a head that a layer does not have) and where a row held NaN. Values are those in float32
    (float64 for such inputs), before dropout and before they are rounded to half precision. Made by
    `record_attention`.

    Args:
        layers: the attention modules, patched.
        keeps_weights: whether the weights of the last call are kept.

    Attributes:
        layers: qualified names of the attention modules, in the order of the model.
        mappings: the name of the mapping in each.
        calls: the forward call, counted from 1, of each snapshot in `parameters`; calls of a part
            alone, such as an encoder, have none.
        weights: with weights=True the p of the last call of each layer, (B, H, Q, K), on the
            layer's device, in float32 (float64 for such inputs).
        valid: with weights=True which keys the queries of that call may attend to, bool,
            broadcastable to its weights; None for all.
        crosses: with weights=True whether that call was cross-attention.
        rows: count only so many sequences of a batch, the first ones; None for all.
    """

    def __init__(self, layers: list[AttentionLayer], keeps_weights: bool = False) -> None:
        self.layers = [layer.name for layer in layers]
        self.mappings = [getattr(layer.module, NAME).name for layer in layers]
        self.calls: list[int] = []
        self.weights: list[Tensor | None] = [None] * len(layers)
        self.valid: list[Tensor | None] = [None] * len(layers)
        self.crosses = [False] * len(layers)
        self.rows: int | None = None
        self._keeps_weights = keeps_weights
        self._modules = [layer.module for layer in layers]
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
        """Mean of -sum p log p over valid queries, in nats, (layers, heads)."""
        return self._ratio("entropy", "rows")

    @property
    def special(self) -> Tensor:
        """Mean mass on special tokens, (layers, heads), in [0, 1].

        NaN without special_ids, and where the keys are not the tokens of one call: a cache, images.
        Cross-attention takes the tokens that the encoder last read for its keys.
        """
        return self._ratio("special", "named")

    @property
    def support_by_position(self) -> Tensor:
        """Mean support of the queries at each position, (layers, heads, positions).

        With a cache that grows a query stands where its own key does; with one of fixed length
        (static, sliding window) that place is not known, and it counts at the end.
        """
        return self._ratio("support", "rows", by_position=True)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Values of the mappings' parameters over the calls, by name, (snapshots, layers, heads).

        At most a thousand snapshots, evenly spaced over the calls: of more calls, every second,
        fourth, ... is kept. NaN where the mapping of a layer has no such parameter.
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
        """Exact zeros and all valid pairs, to be summed over processes."""
        valid, support = self._of_heads("valid"), self._of_heads("support")
        # a row of NaN stays NaN: a run that has diverged is not sparse
        unseen = valid.isnan()
        counts = torch.stack([valid - support, valid])
        return ZeroCounts(counts.masked_fill(unseen, 0.0))

    @property
    def mean(self) -> float:
        """Share of exact zeros over all layers; NaN where nothing was seen."""
        counts = self.zero_counts
        return counts.mean if counts.counts[1].any() else math.nan

    def table(self) -> str:
        """One line a layer, means over its heads; "-" where nothing was seen, nan where NaN was."""
        width = max(map(len, (*self.layers, "layer")))
        kind = max(map(len, (*self.mappings, "mapping")))
        head = (
            f"{'layer':{width}}  {'mapping':{kind}}  {'zeros':>6}  {'support':>7}  {'entropy':>7}"
        )
        lines = [f"{head}  special"]
        columns = (
            (self.zeros * 100, "rows", ".1f", "%", 6),
            (self.support, "rows", ".1f", "", 7),
            (self.entropy, "rows", ".2f", "", 7),
            (self.special * 100, "named", ".1f", "%", 7),
        )
        for i, (layer, mapping) in enumerate(zip(self.layers, self.mappings, strict=True)):
            cells = [f"{layer:{width}}", f"{mapping:{kind}}"]
            for values, count, form, unit, size in columns:
                seen = self._of_heads(count)[i] > 0
                mean = values[i][seen].mean().item()
                cells.append(f"{f'{mean:{form}}{unit}' if seen.any() else '-':>{size}}")
            lines.append("  ".join(cells))
        return "\n".join(lines)

    def _of_heads(self, name: str, by_position: bool = False) -> Tensor:
        """One of the sums, (layers, heads) or (layers, heads, positions)."""
        positions = max((len(s[0]) for s in self._sums if s is not None), default=0)
        shape = (len(self.layers), self._heads(), positions)
        joint = torch.full(shape, torch.nan, dtype=torch.double)
        for i, sums in enumerate(self._sums):
            if sums is not None:
                joint[i, : len(sums)] = 0
                joint[i, : len(sums), : len(sums[0])] = sums[..., COLUMNS.index(name)]
        return joint if by_position else joint.sum(-1)

    def _ratio(self, name: str, count: str, by_position: bool = False) -> Tensor:
        # 0 / 0, where no query was seen, is NaN
        return self._of_heads(name, by_position) / self._of_heads(count, by_position)

    def _heads(self) -> int:
        seen = [len(sums) for sums in self._sums if sums is not None]
        values = (v for call in self._snapshots for layer in call for v in layer.values())
        held = [value.numel() for value in values if isinstance(value, Tensor)]
        return max((*seen, *held, 1))

    def _snapshot(self) -> None:
        """Note the parameters' values, at the start of a forward call."""
        names = [getattr(module, NAME).name for module in self._modules if hasattr(module, NAME)]
        if names != self.mappings:
            raise RuntimeError(
                "the model was patched or unpatched while it is recorded; do so before the block "
                "of record_attention, which sums over its calls"
            )
        self._count += 1
        if (self._count - 1) % self._stride:
            return
        self.calls.append(self._count)
        self._snapshots.append([_values(module) for module in self._modules])
        if len(self._snapshots) > MOST_SNAPSHOTS:
            self.calls, self._snapshots = self.calls[::2], self._snapshots[::2]
            self._stride *= 2

    def _add(self, layer: int, inputs: AttentionInputs, rows: Tensor, own: bool) -> None:
        """Sum the statistics of one call, (B, H, Q, COLUMNS); own: whether it is self-attention."""
        queries = _valid_queries(inputs) if own else None
        if queries is not None:
            rows = rows.where(queries.unsqueeze(-1), 0.0)
        precise = torch.float32 if rows.device.type == "mps" else torch.float64
        sums = rows[: self.rows].sum(0, dtype=precise)  # [H, Q, COLUMNS]
        # a cache holds the positions before
        first = max(0, inputs.shape[3] - inputs.shape[2]) if own else 0
        last = first + sums.shape[1]
        joint = self._sums[layer]
        if joint is None:
            joint = sums.new_zeros(len(sums), last, len(COLUMNS))
        if joint.shape[1] < last:
            joint = F.pad(joint, (0, 0, 0, last - joint.shape[1]))
        joint[:, first:last] += sums
        self._sums[layer] = joint


def _values(module: nn.Module) -> dict[str, float | Tensor]:
    mapping = getattr(module, NAME)
    values = {p.name: mapping.read(p.name) for p in mapping.spec.parameters if not p.per_entry}
    # learned ones change in place; no copy to the CPU here, which would wait for the GPU
    return {n: v.detach().clone() if isinstance(v, Tensor) else v for n, v in values.items()}


def _valid_queries(inputs: AttentionInputs) -> Tensor | None:
    """Which queries are no padding, broadcastable to (B, H, Q); None for all."""
    mask = inputs.mask if inputs.bias is None else inputs.counted()
    if mask is None or inputs.shape[2] != inputs.shape[3]:
        return None
    # a padding mask is one row for all queries
    return mask[..., 0, :] if mask.stride(-2) == 0 else mask.any(-2)


class _LayerObserver:
    """Stands on one attention module and passes on what it computes."""

    def __init__(
        self, record: AttentionRecord, index: int, layer: AttentionLayer, keys: SpecialKeys
    ) -> None:
        self.record, self.index, self.layer, self.keys = record, index, layer, keys
        self.keeps_weights = record._keeps_weights
        self.crosses = False

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward hook: whether this call has its keys from another stack."""
        self.crosses = is_crossing(module, args, kwargs)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # a copy of the model is not recorded
        return type(None), ()

    def special(self, batch: int, keys: int) -> Tensor | None:
        return self.keys.of(self.layer, self.crosses, (batch, keys))

    # sums made in inference mode could not be added to outside of it
    @torch.compiler.disable
    @torch.inference_mode(False)
    @torch.no_grad()
    def see(self, inputs: AttentionInputs, rows: Tensor, weights: Tensor | None) -> None:
        # gradient checkpointing computes the same call again inside the backward pass
        if torch._C._current_graph_task_id() != -1:
            return
        self.record._add(self.index, inputs, rows, not self.crosses)
        if weights is not None:
            self.record.weights[self.index] = weights.detach()
            self.record.crosses[self.index] = self.crosses
            self.record.valid[self.index] = inputs.counted()


@contextmanager
def _softmax_in(root: PreTrainedModel) -> Iterator[None]:
    """softmax of this library in a model that is not patched, and is saved as a plain one."""
    if any(config._attn_implementation == NAME for config in configs_of(root)):
        raise RuntimeError(f"{type(root).__name__}: {NOT_PATCHED}")
    with patched(root, "softmax"):
        set_record(root, NAME, None)
        for config in configs_of(root):
            config._attn_implementation = Unsaved(NAME)
        yield


@contextmanager
def record_attention(
    model: nn.Module, *, special_ids: Iterable[int] | None = None, weights: bool = False
) -> Iterator[AttentionRecord]:
    """`with record_attention(model) as record: model(**batch)`: what attention does inside.

    Every forward call of `model` inside the block counts, in training too. Under gradient
    checkpointing it counts once, and its backward pass must be inside as well. Weights of queries x
    keys are not kept. A model that is not patched runs its softmax through this library inside the
    block: outputs are those of its eager attention up to rounding, except at padding, and dropout
    draws other numbers. Under torch.compile the graph breaks at each layer, which fullgraph=True
    refuses.

    Args:
        model: a Transformers model, patched or not, plain or wrapped.
        special_ids: ids of the tokens whose mass is summed, such as `tokenizer.all_special_ids`.
        weights: also keep the weights of the last call of every layer; slower, as they are formed.

    Yields:
        An `AttentionRecord`, which may be read at any time.

    Raises:
        TypeError: the model is not from Transformers.
        ValueError: as `patch_model`, for a model whose softmax cannot be replaced.
        RuntimeError: the model is being recorded already; it was saved patched and loaded without
            its mappings (see `load_pretrained`); in its next call, that it was patched or unpatched
            inside the block.
    """
    root = root_of(model)
    layers = attention_layers(root)
    if any(getattr(layer.module, OBSERVER, None) is not None for layer in layers):
        raise RuntimeError(
            f"{type(root).__name__} is being recorded already; use the record of the outer block"
        )
    with nullcontext() if is_patched(root) else _softmax_in(root):
        record = AttentionRecord(layers, weights)
        keys = SpecialKeys(root, special_ids)
        snapshot = Hook(lambda *_: record._snapshot())
        handles = [root.register_forward_pre_hook(snapshot), *keys.watch()]
        for index, layer in enumerate(layers):
            observer = _LayerObserver(record, index, layer, keys)
            setattr(layer.module, OBSERVER, observer)
            if can_cross(layer.module):
                handles.append(
                    layer.module.register_forward_pre_hook(Hook(observer.before), with_kwargs=True)
                )
        try:
            yield record
        finally:
            for handle in handles:
                handle.remove()
            for layer in layers:
                delattr(layer.module, OBSERVER)
            record._modules.clear()  # a record does not keep a model

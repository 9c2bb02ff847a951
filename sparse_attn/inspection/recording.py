"""Record the attention of a model, call by call, without keeping the weights."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from sparse_attn.hf.attention import NAME, NOT_PATCHED, Unsaved
from sparse_attn.hf.config import configs_of, remove_entry
from sparse_attn.hf.layers import AttentionLayer, attention_layers, root_of
from sparse_attn.hf.patching import is_patched, patched
from sparse_attn.hf.requested import OBSERVER
from sparse_attn.inspection.by_layer import layer_number
from sparse_attn.inspection.hooks import Hook
from sparse_attn.inspection.record import AttentionRecord
from sparse_attn.inspection.tokens import SpecialKeys, can_cross, is_crossing
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.reference import received_mass
from sparse_attn.kernels.sparse_rows import sparse_rows
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.base import as_number


def valid_queries(inputs: AttentionInputs) -> Tensor | None:
    """Return the mask of queries that are not padding, broadcastable to (B, H, Q); None for all."""
    mask = inputs.mask if inputs.bias is None else inputs.counted()
    if mask is None or inputs.shape[2] != inputs.shape[3]:
        return None
    # a padding mask is one row for all queries
    return mask[..., 0, :] if mask.stride(-2) == 0 else mask.any(-2)


class _Sparse(NamedTuple):
    """Choice of the weights to keep as sparse rows, as in `record_attention`."""

    heads: list[int] | None
    queries: list[int] | None
    threshold: float


@dataclass
class _LayerObserver:
    """Observer of an attention module that adds its statistics to the record."""

    record: AttentionRecord
    index: int
    layer: AttentionLayer
    keys: SpecialKeys
    keeps_weights: bool
    sums_received: bool
    sparse: _Sparse | None
    crosses: bool = False

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: note whether this call gets its keys from another stack."""
        self.crosses = is_crossing(module, args, kwargs)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # a copy of the model is not recorded
        return type(None), ()

    def special(self, batch: int, keys: int) -> Tensor | None:
        """Return the mask (B, K) of special tokens, if known."""
        return self.keys.of(self.layer, self.crosses, (batch, keys))

    # tensors made in inference mode could not be changed outside of it
    @torch.compiler.disable
    @torch.inference_mode(False)
    @torch.no_grad()
    def see(self, inputs: AttentionInputs, rows: Tensor, weights: Tensor | None) -> None:
        # gradient checkpointing repeats the call inside the backward pass
        # private: torch cannot be asked publicly whether a backward pass runs
        if torch._C._current_graph_task_id() != -1:
            return
        first, queries = 0, None
        if not self.crosses:
            queries = valid_queries(inputs)
            rows = rows if queries is None else rows.where(queries.unsqueeze(-1), 0.0)
            # the cache holds the earlier positions
            first = max(0, inputs.shape[3] - inputs.shape[2])
        if inputs.cu_seqlens is not None:
            sequences = rows[0].transpose(0, 1).split(inputs.cu_seqlens.diff().tolist())
            rows = pad_sequence(list(sequences), batch_first=True).transpose(1, 2)
        self.record._add(self.index, rows, first)
        if self.sums_received:
            self.record.received[self.index] = received_mass(inputs, queries)
        if self.sparse is not None:
            kept = sparse_rows(inputs, *self.sparse)
            self.record.sparse[self.layer.name].append(
                replace(kept, first=0) if self.crosses else kept
            )
        if weights is not None:
            self.record.weights[self.index] = weights.detach()
            self.record.crosses[self.index] = self.crosses
            self.record.valid[self.index] = inputs.counted()


@contextmanager
def _library_softmax(root: PreTrainedModel) -> Iterator[None]:
    """Compute softmax by this library in an unpatched model, still saved as a plain one."""
    # private: configs have no public name for their attention implementation
    if any(config._attn_implementation == NAME for config in configs_of(root)):
        raise RuntimeError(f"{type(root).__name__}: {NOT_PATCHED}")
    with patched(root, "softmax"):
        for config in configs_of(root):
            remove_entry(config, NAME)
            config._attn_implementation = Unsaved(NAME)
        for layer in attention_layers(root):
            del getattr(layer.module, NAME).held
        yield


@contextmanager
def record_attention(
    model: nn.Module,
    *,
    special_ids: Iterable[int] | None = None,
    weights: bool | Literal["sparse"] = False,
    received: bool = False,
    layers: Iterable[str | int] | None = None,
    heads: Iterable[int] | None = None,
    queries: Iterable[int] | None = None,
    threshold: float = 0.0,
) -> Iterator[AttentionRecord]:
    """Record attention: `with record_attention(model) as record: model(**batch)`.

    Every forward call of `model` inside the block counts, in training too. With gradient
    checkpointing it counts once, and backward must be inside as well. Weights of queries x keys are
    not kept. An unpatched model runs its softmax through this library inside the block: outputs
    equal those of its eager attention up to rounding, except at padding, and dropout draws other
    numbers. Under torch.compile the graph breaks at each layer, so fullgraph=True fails.

    Args:
        model: a Transformers model, patched or not, plain or wrapped.
        special_ids: ids of the tokens to sum the mass of, such as `tokenizer.all_special_ids`.
        weights: True to keep the weights of every layer's last call as well, which is slower;
            "sparse" to keep those of every call as `record.sparse`, of which nothing is held but
            weights above `threshold`.
        layers, heads, queries: with weights="sparse", what to keep, None for all: layers by name or
            number, heads by number, queries by their index in a call; negative ones count from the
            end.
        threshold: with weights="sparse", the weight that others must exceed to be kept.
        received: also keep the mass that each key received in every layer's last call. The
            reference then recomputes its weights, a few queries at a time.

    Yields:
        An `AttentionRecord`, readable at any time. For rows that need not sum to one (with a sink,
        softpick, sigmoid and others), `mass` is the sum of the row, `entropy` is computed after
        dividing by it, and only zeros of real keys count.

    Raises:
        TypeError: the model is not from Transformers, or an argument is of another type.
        ValueError: as `patch_model`, for a model whose softmax cannot be replaced; a choice without
            weights="sparse", or an empty one; a layer that the model does not have, or that has no
            exact zeros while threshold is 0.
        IndexError: at the next call, a layer has no such head.
        RuntimeError: the model is already being recorded; its config describes mappings that it
            does not hold; or, at its next call, it was patched or unpatched inside the block.
    """
    if not isinstance(received, bool):
        raise TypeError(f"received={received!r}: expected True or False")
    if not 0 <= as_number("threshold", threshold) < math.inf:
        raise ValueError(f"threshold={threshold!r}: expected a number of at least 0")
    threshold = float(threshold)
    choice = {"layers": layers, "heads": heads, "queries": queries, "threshold": threshold or None}
    sparse = _sparse(weights, choice)
    root = root_of(model)
    found = attention_layers(root)
    if any(getattr(layer.module, OBSERVER, None) is not None for layer in found):
        raise RuntimeError(
            f"{type(root).__name__} is already being recorded; use the record of the outer block"
        )
    with nullcontext() if is_patched(root) else _library_softmax(root):
        mappings = [getattr(layer.module, NAME) for layer in found]
        names = [layer.name for layer in found]
        record = AttentionRecord(names, [mapping.name for mapping in mappings])
        kept = _chosen(names, layers) if sparse else []
        for index in kept:
            _check_zeros(names[index], mappings[index], threshold)
            record.sparse[names[index]] = []
        keys = SpecialKeys(root, special_ids)
        snapshot = Hook(
            lambda *_: record._snapshot([getattr(layer.module, NAME, None) for layer in found])
        )
        handles = [root.register_forward_pre_hook(snapshot), *keys.watch()]
        for index, layer in enumerate(found):
            observer = _LayerObserver(
                record,
                index,
                layer,
                keys,
                weights is True,
                received,
                sparse if index in kept else None,
            )
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
            for layer in found:
                delattr(layer.module, OBSERVER)


def _sparse(weights: bool | str, choice: dict[str, Any]) -> _Sparse | None:
    """Return what to keep as sparse rows; None for nothing.

    Raises:
        ValueError: another word, a choice without sparse rows, or an empty one.
        TypeError: a choice of another type.
    """
    if not isinstance(weights, bool) and weights != "sparse":
        raise ValueError(f"weights={weights!r}: expected True, False or 'sparse'")
    if weights != "sparse":
        for name, value in choice.items():
            if value is not None:
                raise ValueError(f"{name}={value!r}: only with weights='sparse'")
        return None
    heads, queries = (
        None if choice[name] is None else _integers(name, choice[name])
        for name in ("heads", "queries")
    )
    return _Sparse(heads, queries, choice["threshold"] or 0.0)


def _listed(name: str, chosen: Any) -> list[Any]:
    """Return the chosen layers, heads or queries.

    Raises:
        ValueError: there are none.
        TypeError: it is no list.
    """
    if isinstance(chosen, (str, bytes)) or not isinstance(chosen, Iterable):
        raise TypeError(f"{name}={chosen!r}: expected a list, such as [0]")
    if not (listed := list(chosen)):
        raise ValueError(f"{name}=[]: names none; leave it out for all")
    return listed


def _integers(name: str, chosen: Any) -> list[int]:
    listed = _listed(name, chosen)
    try:
        return [operator.index(number) for number in listed]
    except TypeError:
        raise TypeError(f"{name}={listed}: expected integers") from None


def _chosen(names: list[str], layers: Iterable[str | int] | None) -> list[int]:
    """Return the numbers of the chosen layers, in model order."""
    if layers is None:
        return list(range(len(names)))
    return sorted({layer_number(layer, names) for layer in _listed("layers", layers)})


def _check_zeros(layer: str, mapping: Mapping, threshold: float) -> None:
    if threshold == 0 and not mapping.spec.zeros:
        raise ValueError(
            f"weights='sparse': {mapping.name}, the mapping of {layer}, gives no weight of exactly "
            "0, so that its rows are as large as weights=True; pass threshold=1e-3 to leave out "
            "smaller weights, or patch the model with a sparse mapping, such as "
            "patch_model(model, 'top-p-softmax', p=0.95)"
        )

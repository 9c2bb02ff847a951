"""What mappings do in a model: the share of exact zeros layer by layer, the slopes of a PLIF."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn.mappings import Mapping
from sparse_attn.patching import attention_layers, is_patched, mappings_of, root_of


class SparsityRecord:
    """Counts of exact zeros and of all pairs (valid query, valid key), per layer and head.

    A key is valid where some query may attend to it. With as many queries as keys, a query is valid
    where its own key is, so that padding counts on neither side.

    rows: count only so many sequences of a batch, the first ones; None for all.
    """

    def __init__(self, layers: int) -> None:
        self.rows: int | None = None
        self.counts = torch.zeros(2, layers, 1, dtype=torch.long)  # zeros and pairs, layer, head

    def add(self, layer: int, weights: Tensor, mask: Tensor | None) -> None:
        """Count one call: weights (B, H, Q, K), mask broadcastable to it or None."""
        if mask is None:
            valid = torch.ones_like(weights, dtype=torch.bool)
        else:
            valid = mask.expand(len(weights), *mask.shape[1:])
            if weights.shape[-2] == weights.shape[-1]:
                valid = valid & valid.any(dim=-2).unsqueeze(-1)
            valid = valid.expand_as(weights)
        weights, valid = weights[: self.rows], valid[: self.rows]
        missing = weights.shape[1] - self.counts.shape[-1]
        self.counts = F.pad(self.counts.to(weights.device), (0, max(missing, 0)))
        for row, counted in enumerate((valid & (weights == 0), valid)):
            self.counts[row, layer, : weights.shape[1]] += counted.sum((0, 2, 3))

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


@contextmanager
def record_sparsity(model: nn.Module) -> Iterator[SparsityRecord]:
    """`with record_sparsity(model) as record:` counts zeros in every forward pass inside.

    Raises:
        ValueError: the model is not patched.
    """
    layers = attention_layers(root_of(model))
    if not is_patched(model):
        raise ValueError(f"{type(model).__name__} is not patched; call patch_model first")
    record = SparsityRecord(len(layers))

    def count(layer: int) -> Any:
        def hook(mapping: Mapping, inputs: tuple[Tensor, Tensor | None], weights: Tensor) -> None:
            record.add(layer, weights.detach(), inputs[1])

        return hook

    handles = [
        mapping.register_forward_hook(count(index))
        for index, layer in enumerate(layers)
        for mapping in mappings_of(layer)
    ]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def slope_statistics(mapping: Mapping) -> dict[str, float]:
    """mean, std, min and max of the slopes s_i = softplus(raw_slopes) of a PLIF over its K bins.

    Source: Ganea et al. 2019, table 2.

    Raises:
        ValueError: the mapping is not a PLIF.
    """
    if mapping.name != "plif":
        raise ValueError(f"mapping={mapping.name}: expected plif, which alone has slopes")
    slopes = F.softplus(torch.as_tensor(mapping.arguments()["raw_slopes"]).detach().double())
    return {
        "mean": slopes.mean().item(),
        "std": slopes.std(correction=0).item(),
        "min": slopes.min().item(),
        "max": slopes.max().item(),
    }

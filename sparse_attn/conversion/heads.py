"""Output error of each attention head when a mapping replaces its softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sparse_attn.hf.attention import OBSERVER
from sparse_attn.hf.layers import attention_layers
from sparse_attn.inspection.recording import valid_queries
from sparse_attn.kernels.dispatch import run
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.statistics import COLUMNS
from sparse_attn.mappings import Mapping


class HeadObserver:
    """Runs a mapping beside softmax in a layer, on the same inputs."""

    keeps_weights = False

    def __init__(self, mapping: Mapping) -> None:
        self.mapping = mapping
        self.sums: Tensor | float = 0.0  # errors, squares, zeros and pairs by head, (4, H)

    def special(self, batch: int, keys: int) -> None:
        """No keys are special."""

    def see(self, inputs: AttentionInputs, rows: Tensor, weights: Tensor | None) -> None:
        """Add the sums of one call."""
        softmax = run(replace(inputs, need_statistics=False)).output
        ours, _, statistics = run(replace(inputs, mapping=self.mapping))
        assert statistics is not None
        queries = valid_queries(inputs)
        use = 1.0 if queries is None else queries.unsqueeze(-1)  # (B, 1, Q, 1)
        squares = [(ours - softmax).square() * use, softmax.square() * use]
        counts = (statistics * use).sum((0, 2))  # (H, COLUMNS)
        valid, support = (counts[:, COLUMNS.index(name)] for name in ("valid", "support"))
        seen = [*(square.sum((0, 2, 3)) for square in squares), valid - support, valid]
        self.sums = self.sums + torch.stack(seen).double().cpu()

    def found(self) -> tuple[list[float], list[float]]:
        """Return the shares of zeros and the errors of the heads."""
        errors, squares, zeros, pairs = torch.as_tensor(self.sums)
        return (zeros / pairs).tolist(), (errors / squares).tolist()


@torch.no_grad()
def measure_heads(
    model: PreTrainedModel, mappings: Sequence[Mapping | None], batches: Sequence[dict[str, Tensor]]
) -> list[tuple[list[float], list[float]]]:
    """Return by layer the heads' shares of zeros and |o - o'|^2 / |o'|^2 of their outputs o.

    Args:
        model: patched with softmax, which gives the outputs o'.
        mappings: mapping of each layer, run on the same inputs; None to skip a layer.
    """
    observers = [
        None if mapping is None else (layer.module, HeadObserver(mapping))
        for layer, mapping in zip(attention_layers(model), mappings, strict=True)
    ]
    seen = [observer for observer in observers if observer is not None]
    for module, observer in seen:
        setattr(module, OBSERVER, observer)
    try:
        for batch in batches:
            model(**batch)
    finally:
        for module, _ in seen:
            delattr(module, OBSERVER)
    return [([], []) if observer is None else observer[1].found() for observer in observers]

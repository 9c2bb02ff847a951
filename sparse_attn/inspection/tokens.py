"""Tokens of a model: special keys of an attention layer by the ids of a call, and longest input."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from sparse_attn.hf.layers import AttentionLayer
from sparse_attn.inspection.hooks import Hook

SOURCES = {"key_value_states", "encoder_hidden_states"}  # inputs with the keys of cross-attention


class SpecialKeys:
    """Masks of the special tokens in the last call of each stack."""

    def __init__(self, root: PreTrainedModel, special_ids: Iterable[int] | None) -> None:
        self.ids = None
        if special_ids is not None:
            try:
                self.ids = torch.tensor(list(special_ids), dtype=torch.long).flatten()
            except (TypeError, ValueError, RuntimeError):
                raise TypeError(
                    f"special_ids={special_ids!r}: expected token ids, such as "
                    "tokenizer.all_special_ids"
                ) from None
        self.stacks = {
            name: module
            for name, module in root.named_modules()
            if isinstance(module, PreTrainedModel)
        }
        self.special: dict[str, Tensor | None] = {}

    def watch(self) -> list[RemovableHandle]:
        """Watch the token ids of every call from now on."""
        if self.ids is None:
            return []
        return [
            module.register_forward_pre_hook(self._ids_hook(name), with_kwargs=True)
            for name, module in self.stacks.items()
        ]

    def _ids_hook(self, name: str) -> Hook:
        signature = _signature(type(self.stacks[name]).forward)

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids = signature.bind(module, *args, **kwargs).arguments.get("input_ids")
            self.special[name] = None
            if isinstance(ids, Tensor) and self.ids is not None:
                self.special[name] = torch.isin(ids, self.ids.to(ids.device))

        return Hook(hook)

    def of(self, layer: AttentionLayer, crosses: bool, shape: tuple[int, int]) -> Tensor | None:
        """Return the mask (B, K) of a layer's special keys; None if they are not one call's tokens.

        crosses: whether the keys come from another stack.
        """
        above = [name for name in self.stacks if f"{layer.name}.".startswith(name and f"{name}.")]
        own = max(above, key=len)
        names = [name for name in self.stacks if name not in above] if crosses else [own]
        found = (self.special.get(name) for name in names)
        return next((keys for keys in found if keys is not None and keys.shape == shape), None)


@functools.cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


def can_cross(module: nn.Module) -> bool:
    """Whether an attention module can take keys from another stack."""
    return not SOURCES.isdisjoint(_signature(type(module).forward).parameters)


def is_crossing(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call of an attention module takes keys from another stack."""
    given = _signature(type(module).forward).bind(module, *args, **kwargs).arguments
    return any(given.get(name) is not None for name in SOURCES)


def longest(config: Any, tokenizer: Any, model: nn.Module | None = None) -> float:
    """Return the largest number of tokens that the model reads, or inf.

    Args:
        model: model with this config; some, such as RoBERTa, start positions after the padding's.
    """
    positions = getattr(config, "max_position_embeddings", None) or math.inf
    for name, module in () if model is None else model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            unused = -1 if module.padding_idx is None else module.padding_idx
            positions = min(positions, module.num_embeddings - unused - 1)
    return min(positions, tokenizer.model_max_length)

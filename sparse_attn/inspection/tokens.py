"""Tokens: which keys of an attention layer are special, by the ids of each call; how many fit."""

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

SOURCES = {"key_value_states", "encoder_hidden_states"}  # where cross-attention has its keys from


class SpecialKeys:
    """The ids of each stack's last call, and which of them are special."""

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
            module.register_forward_pre_hook(self._look(name), with_kwargs=True)
            for name, module in self.stacks.items()
        ]

    def _look(self, name: str) -> Hook:
        signature = _signature(type(self.stacks[name]).forward)

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids = signature.bind(module, *args, **kwargs).arguments.get("input_ids")
            self.special[name] = None
            if isinstance(ids, Tensor) and self.ids is not None:
                self.special[name] = torch.isin(ids, self.ids.to(ids.device))

        return Hook(hook)

    def of(self, layer: AttentionLayer, crosses: bool, shape: tuple[int, int]) -> Tensor | None:
        """Which keys (B, K) of a layer are special; None if they are not the tokens of one call.

        crosses: whether the keys are those of another stack.
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
    """Whether an attention module may get the keys of another stack."""
    return not SOURCES.isdisjoint(_signature(type(module).forward).parameters)


def is_crossing(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call of an attention module gets its keys from another stack."""
    given = _signature(type(module).forward).bind(module, *args, **kwargs).arguments
    return any(given.get(name) is not None for name in SOURCES)


def longest(config: Any, tokenizer: Any, model: nn.Module | None = None) -> float:
    """Tokens that the model reads at most; a whole number, or inf.

    Args:
        model: of this config; some, such as RoBERTa, begin to count positions after the padding's.
    """
    positions = getattr(config, "max_position_embeddings", None) or math.inf
    for name, module in () if model is None else model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            unused = -1 if module.padding_idx is None else module.padding_idx
            positions = min(positions, module.num_embeddings - unused - 1)
    return min(positions, tokenizer.model_max_length)

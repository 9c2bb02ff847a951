"""Find the attention modules of a Transformers model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Hashable
from dataclasses import dataclass
from typing import cast

from torch import nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class AttentionLayer:
    """An attention module: its qualified name, its block number, the module itself."""

    name: str
    block: int | None
    module: nn.Module


def root_of(model: nn.Module) -> PreTrainedModel:
    """The Transformers model inside whatever wraps it."""
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, PreTrainedModel):
            return module
    raise TypeError(f"model: expected a Transformers model, got {type(model).__name__}")


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """The modules that dispatch their attention, in the order of the model."""
    layers = []
    for name, module in model.named_modules():
        if _dispatches(cast(Hashable, type(module))):
            block = next((int(part) for part in name.split(".") if part.isdigit()), None)
            layers.append(AttentionLayer(name, block, module))
    return layers


@functools.cache
def _dispatches(cls: type[nn.Module]) -> bool:
    """Whether the forward of this class looks its attention function up in the interface."""
    return "ALL_ATTENTION_FUNCTIONS" in source_of_forward(cls)


@functools.cache
def computes_softmax(cls: type[nn.Module]) -> bool:
    """Whether this is an attention class that does not look its function up in the interface."""
    if "Attention" not in cls.__name__ or _dispatches(cast(Hashable, cls)):
        return False
    source = source_of_forward(cls)
    return "softmax(" in source or "scaled_dot_product_attention(" in source


def source_of_forward(cls: type[nn.Module]) -> str:
    """Empty where there is none to read."""
    try:
        return inspect.getsource(cls.forward)
    except (OSError, TypeError):
        return ""

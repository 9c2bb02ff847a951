"""Find the attention modules of a Transformers model."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import CodeType
from typing import Any, cast

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_attn.hf.attention import NAME
from sparse_attn.mappings import Mapping

# excludes comments, and getattr, which gives eager attention for any name
LOOKUP = re.compile(r"ALL_ATTENTION_FUNCTIONS(\[|\.get(_interface)?\()")
SOFTMAX = re.compile(
    r"softmax\(|scaled_dot_product_attention\(|multi_head_attention_forward\(|"
    r"eager_attention_forward"
)
# distinguishes attention from a router or a head in a class of any name
SOFTMAX_WEIGHTS = re.compile(r"\b\w*att(n|ention)\w* = .*softmax\(")

# source text of passing sinks, one for each head, and of passing selected keys
SINKS = re.compile(r"\bs_aux=self\.sinks\b")
SELECTS = re.compile(r"\bindices=")

# modules besides attention that read its mask as padding, which a boolean mask would invert
MASK_READERS = ("NllbMoeTop2Router",)

# names of the linear layers that make queries from hidden_states
QUERY_LAYERS = ("q_proj", "query", "q_lin", "q", "q_a_proj", "qkv", "qkv_proj", "query_key_value")


@dataclass(frozen=True)
class AttentionLayer:
    """Attention module with its qualified name and block number."""

    name: str
    block: int | None
    module: nn.Module


def root_of(model: nn.Module) -> PreTrainedModel:
    """Return the one Transformers model inside any wrappers."""
    inner = model if isinstance(model, nn.Module) else nn.Module()
    # fast path for wrappers of a single module, such as DDP, because schedules call this every step
    while not isinstance(inner, PreTrainedModel) and len(children := list(inner.children())) == 1:
        inner = children[0]
    if isinstance(inner, PreTrainedModel):
        return inner
    models = [module for module in inner.modules() if isinstance(module, PreTrainedModel)]
    if not models:
        remedy = "; pass its .model" * isinstance(getattr(model, "model", None), nn.Module)
        raise TypeError(f"model: expected a Transformers model, got {type(model).__name__}{remedy}")
    root, inside = models[0], set(models[0].modules())
    if outside := [type(module).__name__ for module in models if module not in inside]:
        raise ValueError(
            f"model: {type(model).__name__} holds several Transformers models, "
            f"{type(root).__name__} and {', '.join(outside)}; pass them one by one"
        )
    return root


def config_of(attention: nn.Module) -> PreTrainedConfig:
    return cast(PreTrainedConfig, attention.config)


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """Return the modules that dispatch their attention, in model order."""
    layers = []
    for name, module in model.named_modules():
        if _dispatches(cast(Hashable, type(module))):
            block = next((int(part) for part in name.split(".") if part.isdigit()), None)
            layers.append(AttentionLayer(name, block, module))
    return layers


def mappings_of(layer: AttentionLayer) -> list[Mapping]:
    """Return the `Mapping` of a layer, and its trainable copies with PEFT's modules_to_save."""
    held = getattr(layer.module, NAME, None)
    if isinstance(held, Mapping):
        return [held]
    return [m for m in held.modules() if isinstance(m, Mapping)] if held is not None else []


@functools.cache
def _dispatches(cls: type[nn.Module]) -> bool:
    """Whether the forward of this class looks its attention function up in the interface."""
    return LOOKUP.search(source_of_forward(cls)) is not None


@functools.cache
def computes_softmax(cls: type[nn.Module]) -> bool:
    """Whether this class computes its own attention softmax, without the lookup.

    An attention class without readable source counts as one.
    """
    if issubclass(cls, nn.MultiheadAttention):
        return True
    if cls.__module__.startswith("torch.") or _dispatches(cast(Hashable, cls)):
        return False
    sources = [
        _source(method)
        for base in cls.__mro__[: cls.__mro__.index(nn.Module)]
        for method in vars(base).values()
        if inspect.isfunction(method)
    ]
    if re.search("Attention|Attn", cls.__name__):
        return "" in sources or any(SOFTMAX.search(source) for source in sources)
    return any(SOFTMAX_WEIGHTS.search(source) for source in sources)


def has_sinks(attention: nn.Module) -> bool:
    """Whether the module passes learned sinks, a score (H,) of one virtual key."""
    return getattr(attention, "sinks", None) is not None and _passes_sinks(
        cast(Hashable, type(attention))
    )


def unseen_sinks(attention: nn.Module) -> list[str]:
    """Name the parameters and buffers that look like sinks, unless the module passes them."""
    if has_sinks(attention):
        return []
    tensors = itertools.chain(attention.named_parameters(), attention.named_buffers())
    return [name for name, _ in tensors if "sink" in name and f"{NAME}." not in name]


@functools.cache
def _passes_sinks(cls: type[nn.Module]) -> bool:
    source = source_of_forward(cls)
    return SINKS.search(source) is not None and SELECTS.search(source) is None


def source_of_forward(cls: type[nn.Module]) -> str:
    """Return the source of the class's forward; empty if it cannot be read."""
    return _source(cls.forward)


def _source(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else _source_of(code)


@functools.cache  # by code, because a function may hold a model
def _source_of(code: CodeType) -> str:
    try:
        # private: no attribute tells whether a class uses the attention interface
        return inspect.getsource(code)
    except OSError:
        return ""


def input_size(layer: AttentionLayer) -> int:
    """Return the length of the module's input at one position, hidden_states.

    Raises:
        ValueError: its forward takes something else first.
    """
    first = [*inspect.signature(type(layer.module).forward).parameters][1]
    if first != "hidden_states":
        raise ValueError(
            f'per="query": {type(layer.module).__name__} ({layer.name}) takes {first} and not '
            'hidden_states, from which the factors are computed; use per="head"'
        )
    for name, module in layer.module.named_modules():
        if name.rpartition(".")[2] in QUERY_LAYERS and hasattr(module, "in_features"):
            return int(module.in_features)
    return config_of(layer.module).hidden_size

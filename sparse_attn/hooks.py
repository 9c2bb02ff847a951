"""Forward hooks of a patched model: what would give softmax unnoticed raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sparse_attn.attention import NAME, REACHED
from sparse_attn.layers import AttentionLayer
from sparse_attn.records import config_of


def add_hooks(root: PreTrainedModel, layers: Sequence[AttentionLayer], weights: bool) -> None:
    """Put the hooks on a model; weights: ask for attention weights in every call."""
    for layer in layers:
        layer.module.register_forward_pre_hook(_check_dispatch)
        layer.module.register_forward_hook(_check_reached)
    root.register_forward_pre_hook(_mark_adapters)
    if weights:
        root.register_forward_pre_hook(_ask_for_weights, with_kwargs=True)


def remove_hooks(root: PreTrainedModel, layers: Sequence[AttentionLayer]) -> None:
    """Take them off, with their traces."""
    for layer in layers:
        _remove(layer.module)
        layer.module.__dict__.pop(REACHED, None)
    _remove(root)
    for config in _adapters(root):
        config.exclude_modules = set(config.exclude_modules or ()) - {NAME} or None


def asks_for_weights(root: PreTrainedModel) -> bool:
    """Whether every call of this model asks for attention weights."""
    return _ask_for_weights in root._forward_pre_hooks.values()


def _check_dispatch(module: nn.Module, args: Any) -> None:
    """Whoever switches the implementation back must not get softmax unnoticed."""
    implementation = config_of(module)._attn_implementation
    if implementation != NAME:
        raise RuntimeError(
            f"{type(module).__name__} is patched with {getattr(module, NAME).name}, but the "
            f"model's attention implementation was changed to {implementation!r}; call "
            f"unpatch_model first, or model.set_attn_implementation({NAME!r}) to go back"
        )


def _check_reached(module: nn.Module, args: Any, output: Any) -> None:
    """A path through the module that does not ask the interface must not give softmax either."""
    if not getattr(module, REACHED, False):
        raise RuntimeError(
            f"{type(module).__name__} is patched with {getattr(module, NAME).name}, but computed "
            "its output without it, on a path of its own; unpatch this model"
        )


def _ask_for_weights(
    root: PreTrainedModel, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """config.output_attentions=True, which Transformers allows with eager attention alone."""
    return args, {"output_attentions": True, **kwargs}


def _mark_adapters(root: PreTrainedModel, args: Any) -> None:
    """Have PEFT warn where an adapter trained on a patched base is loaded on a plain one."""
    if torch.compiler.is_compiling():
        return
    for config in _adapters(root):
        if NAME not in (config.exclude_modules or ()):
            config.exclude_modules = {NAME, *(config.exclude_modules or ())}


def _adapters(root: PreTrainedModel) -> list[Any]:
    """The configs of PEFT adapters in a model that can exclude modules by a list of names."""
    configs = getattr(root, "peft_config", {}).values()
    return [c for c in configs if not isinstance(getattr(c, "exclude_modules", ""), str)]


def _remove(module: nn.Module) -> None:
    # by value: the handle of a hook does not survive deepcopy
    ours = (_check_dispatch, _check_reached, _ask_for_weights, _mark_adapters)
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if hook in ours]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)

"""Check before a forward that every attention module holds its mapping.

The check hangs on the innermost models too, which others call, so that `model.forward` meets it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from sparse_attn.hf.attention import NAME
from sparse_attn.hf.hooks import drop_hooks, keep_key
from sparse_attn.hf.layers import attention_layers, mappings_of
from sparse_attn.hf.refusals import refuse_softmax
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.values import refresh

STRUCTURE = "_sparse_attn_structure"


class Structure(NamedTuple):
    """Modules around the attention of a model with their children, and its mappings."""

    around: list[tuple[nn.Module, tuple[nn.Module, ...]]]
    mappings: list[Mapping]


def watch(root: PreTrainedModel) -> None:
    """Check `root` and the models in it that hold attention before each forward."""
    unwatch(root)
    for model in [root, *(inner for inner in _innermost(root) if inner is not root)]:
        vars(model)[STRUCTURE] = _structure(model)
        keep_key(model.register_forward_pre_hook(_check))


def unwatch(root: PreTrainedModel) -> None:
    """Remove the checks."""
    for module in root.modules():
        if vars(module).pop(STRUCTURE, None) is not None:
            drop_hooks(module, _check)


def _innermost(root: PreTrainedModel) -> list[PreTrainedModel]:
    holders: dict[int, PreTrainedModel] = {}
    for layer in attention_layers(root):
        path = layer.name.split(".")
        around = [root.get_submodule(".".join(path[:end])) for end in range(len(path))]
        inner = [module for module in around if isinstance(module, PreTrainedModel)][-1]
        holders[id(inner)] = inner
    return list(holders.values())


def _structure(model: PreTrainedModel) -> Structure:
    layers = attention_layers(model)
    dots = [(layer.name, i) for layer in layers for i, c in enumerate(layer.name) if c == "."]
    parents = [model, *map(model.get_submodule, dict.fromkeys(name[:i] for name, i in dots))]
    checked = {m for inner in _innermost(model) if inner is not model for m in inner.modules()}
    around = [(parent, tuple(parent.children())) for parent in parents if parent not in checked]
    return Structure(around, [mapping for layer in layers for mapping in mappings_of(layer)])


def _check(model: PreTrainedModel, args: Any) -> None:
    """Forward pre-hook: raise for attention without a mapping; read what was written to buffers."""
    if torch.compiler.is_dynamo_compiling():
        return
    structure = vars(model)[STRUCTURE]
    if any(tuple(m.children()) != children for m, children in structure.around):
        for layer in attention_layers(model):
            if not hasattr(layer.module, NAME):
                raise RuntimeError(
                    f"{layer.name} was added to {type(model).__name__} after patch_model, and "
                    f"would compute softmax; call patch_model(model, ..., layers=[{layer.block}])"
                )
        refuse_softmax(model)
        structure = vars(model)[STRUCTURE] = _structure(model)
    # what writes to the buffers writes to all of them, as DDP does before each call
    if any(mapping.changed_buffers() for mapping in structure.mappings[:1]):
        refresh(structure.mappings)

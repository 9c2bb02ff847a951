"""Config entry of a patched attention, read from its modules."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from sparse_attn.hf.attention import NAME, Unsaved
from sparse_attn.hf.config import (
    INSTALLED,
    PATCHERS,
    Description,
    PatchConfig,
    Snapshot,
    patch_of,
    snapshot,
)
from sparse_attn.hf.entries import with_module
from sparse_attn.hf.hooks import asks_for_weights
from sparse_attn.hf.layers import AttentionLayer, attention_layers
from sparse_attn.mappings import Mapping


def mappings_of(layer: AttentionLayer) -> list[Mapping]:
    """Return the `Mapping` of a layer, and its trainable copies with PEFT's modules_to_save."""
    held = getattr(layer.module, NAME, None)
    if isinstance(held, Mapping):
        return [held]
    return [m for m in held.modules() if isinstance(m, Mapping)] if held is not None else []


def describe(root: PreTrainedModel, kept: Any) -> Description:
    """Describe config.sparse_attn: the mappings, with the positions of their attention modules."""
    flags = {"output_attentions": True} if asks_for_weights(root) else {}
    return partial(_written, _held(attention_layers(root)), flags)


def _held(layers: list[AttentionLayer]) -> list[tuple[int, Mapping]]:
    return [(p, mapping) for p, layer in enumerate(layers) for mapping in mappings_of(layer)[:1]]


def _written(held: list[tuple[int, Mapping]], flags: dict[str, Any]) -> dict[str, Any]:
    groups: dict[str, dict[str, Any]] = {}
    for position, mapping in held:
        entry = with_module(mapping.describe())
        groups.setdefault(repr(entry), {**entry, "modules": []})["modules"].append(position)
    return {"mappings": list(groups.values()), **flags}


def show_parts(root: PreTrainedModel) -> None:
    """Update the configs of copied parts of a patched model to their current mappings."""
    for part in [module for module in root.modules() if isinstance(module, PreTrainedModel)]:
        held = _held(attention_layers(part))
        if held and isinstance(entry := vars(part.config).get(NAME), Snapshot):
            flags = {k: v for k, v in entry.items() if k == "output_attentions"}
            setattr(part.config, NAME, snapshot(partial(_written, held, flags)))


def refuse_copied(root: PreTrainedModel) -> None:
    """Raise if patched layers or heads of another model would be saved without their mappings."""
    # private: configs have no public name for their attention implementation
    if isinstance(root.config._attn_implementation, Unsaved):  # the model is only recorded
        return
    show_parts(root)
    for key, patcher in PATCHERS.items():
        if patch_of(root, key) is None and (name := _undescribed(root, key)) is not None:
            raise RuntimeError(
                f"{name} has a mapping, but {type(root).__name__} was not patched by {patcher}: "
                "the module was copied from a patched model and would load without its mapping; "
                f"copy it from an unpatched model, then call {patcher}"
            )


def _undescribed(root: PreTrainedModel, key: str) -> str | None:
    """Find a patched module that no config in `root` describes, by name."""
    described: set[nn.Module] = set()
    for part in (module for module in root.modules() if isinstance(module, PreTrainedModel)):
        entry = vars(part.config).get(key)
        is_foreign = isinstance(entry, PatchConfig) and entry.is_foreign(part)
        if isinstance(entry, (PatchConfig, Snapshot)) and not is_foreign:
            described.update(part.modules())
    for name, module in root.named_modules():
        if key == NAME:
            is_patched = NAME in dict(module.named_children())
        else:
            is_patched = vars(module).get(INSTALLED) == key
        if is_patched and module not in described:
            return name
    return None

"""Errors for models whose softmax cannot be replaced."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

from transformers import PreTrainedModel

from sparse_attn.hf.layers import MASK_READERS, AttentionLayer, computes_softmax, unseen_sinks
from sparse_attn.mappings import Mapping, get_spec


def refuse(root: PreTrainedModel, found: Sequence[AttentionLayer]) -> None:
    """Raise for a model whose softmax cannot be replaced."""
    name, closed, readers = type(root).__name__, [], []
    for place, module in root.named_modules():
        # private: Transformers decides by it, and does not export it
        if isinstance(module, PreTrainedModel) and not module._can_set_attn_implementation():
            closed.append(type(module).__name__)
        if type(module).__name__ in MASK_READERS:
            readers.append(place)
    if closed or not found:
        raise ValueError(
            f"{(closed or [name])[0]} does not dispatch its attention through Transformers' "
            "AttentionInterface, so its softmax cannot be replaced; use a model that does, such as "
            "BERT, RoBERTa, ELECTRA or ModernBERT"
        )
    refuse_softmax(root)
    if readers:
        raise ValueError(
            f"{name}: {readers[0]} reads the additive attention mask as padding, which a boolean "
            "one would invert; use a model without it, such as M2M100 instead of NLLB-MoE"
        )
    if unseen := [f"{layer.name}.{n}" for layer in found for n in unseen_sinks(layer.module)]:
        raise ValueError(
            f"{name} has attention sinks, {unseen[0]}, which it does not pass as s_aux, one for "
            "each head and without selected keys, so its softmax cannot be replaced; use a model "
            "that does, such as GPT-OSS"
        )


def refuse_softmax(root: PreTrainedModel) -> None:
    """Raise for a model with softmax outside the attention that can be replaced."""
    modules = root.named_modules()
    if own := [place for place, m in modules if computes_softmax(cast(Hashable, type(m)))]:
        raise ValueError(
            f"{type(root).__name__} computes softmax in {', '.join(own[:3])}, outside the "
            "attention that can be replaced; patch the submodel without it, such as a text or "
            "vision part"
        )


def refuse_sinks(layer: AttentionLayer, mapping: Mapping) -> None:
    """Raise for a mapping that cannot take the sinks that the layer passes."""
    if mapping.has_sink:
        raise ValueError(
            f"sink: {layer.name} has learned sinks of its own, which {mapping.name} takes; leave "
            "sink out"
        )
    try:
        get_spec(mapping.name, sink=True)
    except ValueError as error:
        raise ValueError(
            f"mapping={mapping.name!r}: {layer.name} has attention sinks, which {mapping.name} "
            "cannot take; use one that can, such as softmax, entmax or r-softmax"
        ) from error

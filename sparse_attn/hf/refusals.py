"""Errors for models whose softmax cannot be replaced, or that lost their mappings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

from torch import nn
from transformers import PreTrainedModel

from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import HEAD, MULTILABEL, PatchConfig, Snapshot, patch_of
from sparse_attn.hf.entries import check_entry, is_learned
from sparse_attn.hf.layers import MASK_READERS, AttentionLayer, computes_softmax, unseen_sinks
from sparse_attn.mappings import Mapping, get_spec


def refuse(root: PreTrainedModel, found: Sequence[AttentionLayer]) -> None:
    """Raise for a model whose softmax cannot be replaced."""
    refuse_lost_head(root)
    name, closed, own, readers = type(root).__name__, [], [], []
    for place, module in root.named_modules():
        # private: Transformers decides by it, and does not export it
        if isinstance(module, PreTrainedModel) and not module._can_set_attn_implementation():
            closed.append(type(module).__name__)
        if computes_softmax(cast(Hashable, type(module))):
            own.append(place)
        if type(module).__name__ in MASK_READERS:
            readers.append(place)
    if closed or not found:
        raise ValueError(
            f"{(closed or [name])[0]} does not dispatch its attention through Transformers' "
            "AttentionInterface, so its softmax cannot be replaced; use a model that does, such as "
            "BERT, RoBERTa, ELECTRA or ModernBERT"
        )
    if own:
        raise ValueError(
            f"{name} computes softmax in {', '.join(own[:3])}, outside the attention that can be "
            "replaced; patch the submodel without it, such as a text or vision part"
        )
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
    if patch_of(root, NAME) is None and any(hasattr(layer.module, NAME) for layer in found):
        raise ValueError(
            f"{name} is, or contains, a part that is already patched; patch or unpatch the model "
            "that was patched first"
        )


def refuse_lost_parameters(root: PreTrainedModel) -> None:
    """Raise for a model that was saved with learned parameters and loaded without them."""
    models = {n: m for n, m in root.named_modules() if isinstance(m, PreTrainedModel)}
    saved = {n: vars(m.config)[NAME] for n, m in models.items() if NAME in vars(m.config)}
    # entries written by a model in memory do not come from a file
    saved = {n: s for n, s in saved.items() if not isinstance(s, (PatchConfig, Snapshot))}
    for saved_entry in saved.values():
        check_entry(NAME, saved_entry)
    for entry in (entry for s in saved.values() for entry in s["mappings"]):
        if is_learned(entry["mapping"], entry["learn"], entry["per"]):
            places = ", ".join(f"{n}.config.{NAME}".lstrip(".") for n in saved)
            raise ValueError(
                f"the config of {type(root).__name__} describes a learned {entry['mapping']}, "
                "whose parameters were not loaded; use sparse_attn.load_pretrained(cls, path), "
                f"or, to start from new ones, delete {places}"
            )


def refuse_lost_head(root: PreTrainedModel) -> None:
    """Raise for a model that was saved with a patched head and loaded without it."""
    lost = {
        HEAD: type(root.get_output_embeddings()) is nn.Linear,
        MULTILABEL: patch_of(root, MULTILABEL) is None,
    }
    for key in lost:
        entry = vars(root.config).get(key)
        # the head belongs to another model in memory that shares the config; see `own_configs`
        others = isinstance(entry, PatchConfig) and entry.is_foreign(root)
        if entry is not None and lost[key] and not others:
            raise ValueError(
                f"the config of {type(root).__name__} describes a patched head, which was not "
                "loaded; use sparse_attn.load_pretrained(cls, path), or, if the head is to be the "
                f"plain one, delete config.{key}"
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

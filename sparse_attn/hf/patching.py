"""Patch the attention of a Transformers model with mappings, and unpatch it."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from sparse_attn.hf.adapters import release_adapters, watch_adapters
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import (
    GUARDS,
    add_entry,
    configs_of,
    hold,
    models_in,
    own_configs,
    remove_entry,
)
from sparse_attn.hf.entries import is_learned, with_module
from sparse_attn.hf.hooks import (
    add_layer_hooks,
    ask_for_weights,
    asks_for_weights,
    drop_hooks,
    keep_key,
    remove_layer_hooks,
    set_mapping,
)
from sparse_attn.hf.layers import (
    AttentionLayer,
    attention_layers,
    config_of,
    has_sinks,
    input_size,
    mappings_of,
    root_of,
)
from sparse_attn.hf.refusals import refuse, refuse_sinks
from sparse_attn.hf.structure import unwatch, watch
from sparse_attn.mappings import Mapping, get_spec
from sparse_attn.mappings.module import check_by_query

PATCHED = "_sparse_attn_patched"  # on a patched model: what `unpatch_model` restores, by model

ModelT = TypeVar("ModelT", bound=nn.Module)


def patch_model(
    model: ModelT,
    mapping: str,
    *,
    layers: Iterable[int] | None = None,
    learn: str | Iterable[str] = (),
    per: str = "layer",
    **parameters: Any,
) -> ModelT:
    """Replace softmax by `mapping` in the attention of a Transformers model, in place.

    A later call replaces the mapping of its layers, so several calls give several mappings in one
    model. Layers without a call compute softmax.

        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from sparse_attn import patch_model
        >>> config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
        >>> model = patch_model(BertModel(config), "r-softmax", r=0.5)
        >>> seen = model(torch.tensor([[2, 7, 8, 9, 3]]), output_attentions=True)
        >>> (seen.attentions[0] == 0).sum(-1)  # of 5 keys, in 2 heads, for 5 queries
        tensor([[[3, 3, 3, 3, 3],
                 [3, 3, 3, 3, 3]]])

    Args:
        model: a Transformers model, plain or wrapped (PEFT, DDP, torch.compile).
        mapping: a registered name, see `mapping_names()`.
        layers: block numbers, counted from 0 in each stack of the model; all if None.
        learn: names of the parameters to learn.
        per: "layer" for one learned value per layer, "head" for one per head; "query" for a
            `scaled-NAME` whose factor depends on the input of each query, with learned weights
            for each head (`QueryScale`).
        **parameters: values of the mapping's parameters; a sequence gives one value per head and
            needs per="head".

    Returns:
        The same model; with its own config if another patched model shared it.

    Raises:
        ValueError: an unknown mapping, a value out of range, a layer the model does not have, a
            model that does not dispatch its attention, a sink (or a mapping that cannot have one)
            for layers with learned sinks, attention modules without hidden_states for per="query",
            a part of a patched model, or parameters to learn in a model on the meta device.
        TypeError: an unknown parameter, or a model that is not from Transformers.
    """
    root = root_of(model)
    found = attention_layers(root)
    refuse(root, found)
    _refuse_part(root, found)
    chosen = found if layers is None else _select(root, found, layers)
    if is_learned(mapping, learn, per) and (at := [c for c in chosen if _device(c).type == "meta"]):
        raise ValueError(
            f"{mapping}: its learned parameters cannot start on the meta device, where "
            f"{at[0].name} is; load the weights first, then patch the model"
        )
    # all are built before the first is set, so that a wrong argument does not change the model
    made = {c.name: make_mapping(c, mapping, learn, per, parameters) for c in chosen}
    own_configs(root)
    install(root, found, made)
    return model


def unpatch_model(model: ModelT) -> ModelT:
    """Restore a patched `model` in place: outputs, state_dict keys and config.

    Raises:
        ValueError: the model is not patched.
        TypeError: a model that is not from Transformers.
    """
    root = root_of(model)
    before = vars(root).pop(PATCHED, None)
    if before is None:
        raise ValueError(f"{type(root).__name__} is not patched; call patch_model first")
    found = attention_layers(root)
    for layer in found:
        set_mapping(layer.module, None)
    remove_layer_hooks(found)
    unwatch(root)
    drop_hooks(root, ask_for_weights)
    for config in configs_of(root):
        remove_entry(config, NAME)
    for name, inner in models_in(root):
        implementation, weights = before.get(name, (None, False))
        # private: configs have no public name for their attention implementation
        usual = "eager" if weights else inner.get_correct_attn_implementation(None)
        inner.config._attn_implementation = implementation or usual
        # private: output_attentions may refuse what it was
        inner.config._output_attentions = weights
        release_adapters(inner)  # of a part that was patched before the whole, too
    for config in configs_of(root):
        if config._attn_implementation in GUARDS:  # of a layer that was added
            config._attn_implementation = root.config._attn_implementation
    return model


@contextmanager
def patched(model: ModelT, mapping: str, **arguments: Any) -> Iterator[ModelT]:
    """Patch the model for a block, then restore it: `with patched(model, "sparsemax"): ...`.

    An already patched model gets its mappings back.

    Args:
        model, mapping, **arguments: as `patch_model`, as are errors.
    """
    root, before = root_of(model), {}
    if is_patched(root):
        before = {layer.name: getattr(layer.module, NAME) for layer in attention_layers(root)}
    patch_model(model, mapping, **arguments)
    try:
        yield model
    finally:
        if before:
            install(root, attention_layers(root), before)
        elif is_patched(root):  # the block may have unpatched it
            unpatch_model(model)


def is_patched(model: nn.Module) -> bool:
    """Whether `patch_model` has been called on this model, or it was loaded patched."""
    return PATCHED in vars(root_of(model))


def set_parameter(model: nn.Module, name: str, value: float, ends: Sequence[float] = ()) -> None:
    """Set a fixed parameter in all mappings that have it; the values `ends` are checked first.

    Raises:
        ValueError: out of range, or no mapping of the model has this fixed parameter.
    """
    layers = attention_layers(root_of(model))
    mappings = [mapping for layer in layers for mapping in mappings_of(layer)]
    holders = [mapping for mapping in mappings if name in mapping.fixed]
    if not holders:
        names = sorted({mapping.name for mapping in mappings}) or ["no mapping at all"]
        raise ValueError(
            f"parameter={name!r}: the model's mappings ({', '.join(names)}) have no such fixed "
            "parameter, or it is learned; patch the model first or choose another"
        )
    for mapping in holders:
        for end in ends:
            mapping.spec.parameter(name).check(end)
    for mapping in holders:
        mapping.set_value(name, value)


def _refuse_part(root: PreTrainedModel, found: Sequence[AttentionLayer]) -> None:
    """Raise for a part of a patched model."""
    inside = any(PATCHED in vars(inner) for _, inner in models_in(root))
    if not inside and any(hasattr(layer.module, NAME) for layer in found):
        raise ValueError(
            f"{type(root).__name__} is a part of a model that is already patched; patch or unpatch "
            "the model that was patched first"
        )


def _select(
    root: PreTrainedModel, found: Sequence[AttentionLayer], layers: Iterable[int]
) -> list[AttentionLayer]:
    if isinstance(layers, (int, str)):
        block = layers if isinstance(layers, int) else 0
        raise TypeError(f"layers={layers!r}: expected a list of block numbers, such as [{block}]")
    wanted = list(layers)
    if not wanted:
        raise ValueError("layers=[]: names no layer; omit it for all of them")
    blocks = sorted({layer.block for layer in found if layer.block is not None})
    shared = blocks == list(range(len(blocks)))  # other numberings skip layers without attention
    if shared and len(found) < getattr(root.config, "num_hidden_layers", 0):
        raise ValueError(
            f"layers={wanted}: {type(root).__name__} shares {len(found)} attention module(s) among "
            f"its {root.config.num_hidden_layers} layers; leave out layers"
        )
    for number in wanted:
        if type(number) is not int or number not in blocks:
            raise ValueError(
                f"layers={wanted}: {type(root).__name__} has no layer {number!r}; expected numbers "
                f"from {blocks[0]} to {blocks[-1]}"
            )
    return [layer for layer in found if layer.block in wanted]


def install(
    root: PreTrainedModel,
    found: Sequence[AttentionLayer],
    mappings: abc.Mapping[str, nn.Module],
) -> None:
    """Set these mappings by layer, and describe them in the configs."""
    set_mappings(root, found, mappings)
    _describe(root)


def set_mappings(
    root: PreTrainedModel,
    found: Sequence[AttentionLayer],
    mappings: abc.Mapping[str, nn.Module],
) -> None:
    """Set these mappings by layer; other layers without a mapping compute softmax."""
    _switch(root)
    for layer in found:
        if layer.name in mappings:
            set_mapping(layer.module, mappings[layer.name])
        elif not hasattr(layer.module, NAME):
            set_mapping(layer.module, make_mapping(layer, "softmax"))
    add_layer_hooks(found)
    watch(root)
    watch_adapters(root)


def _switch(root: PreTrainedModel) -> None:
    """Make the configs ask for our attention, and keep what they asked for before."""
    before, earlier, weights = {}, {}, False
    for name, inner in models_in(root):
        usual = inner.config._attn_implementation
        before[name] = None if usual in GUARDS else usual, inner.config.output_attentions
        for place, state in vars(inner).pop(PATCHED, {}).items():  # it was patched before
            earlier[f"{name}.{place}".strip(".")] = state
        weights |= asks_for_weights(inner)
        drop_hooks(inner, ask_for_weights)
    if weights or root.config.output_attentions:
        keep_key(root.register_forward_pre_hook(ask_for_weights, with_kwargs=True))
    for config in configs_of(root):
        config.output_attentions = False
        config._attn_implementation = NAME
    vars(root)[PATCHED] = before | earlier


def _describe(root: PreTrainedModel) -> None:
    """Write the mappings into the configs of the model and of the models inside it."""
    described: set[int] = set()
    for _, inner in models_in(root):
        layers = attention_layers(inner)
        if id(inner.config) in described or not layers:
            continue
        described.add(id(inner.config))
        tables = {layer.name: with_module(mappings_of(layer)[0].describe()) for layer in layers}
        flags = {"output_attentions": True} if inner is root and asks_for_weights(root) else {}
        add_entry(inner.config, NAME, {"mappings": tables, **flags})


def make_mapping(
    layer: AttentionLayer,
    name: str,
    learn: str | Iterable[str] = (),
    per: str = "layer",
    parameters: dict[str, Any] | None = None,
) -> Mapping:
    """Make a mapping that fits the layer, on its device and in its mode.

    With per="head" or "query" it has one value per head of the layer.
    """
    values = parameters or {}
    if per not in ("layer", "head", "query"):
        raise ValueError(f"per={per!r}: expected 'layer', 'head' or 'query'")
    if "query_size" in values:
        raise TypeError(
            f"query_size={values['query_size']!r}: unknown parameter; with per='query' it is that "
            "of the layer"
        )
    if per == "query":
        check_by_query(get_spec(name), "per='query'")
    num_heads = _number_of_heads(layer) if per != "layer" else None
    query_size = input_size(layer) if per == "query" else None
    mapping = Mapping(name, learn=learn, num_heads=num_heads, query_size=query_size, **values)
    if has_sinks(layer.module):
        refuse_sinks(layer, mapping)
    return hold(mapping).to(_device(layer)).train(layer.module.training)


def _number_of_heads(layer: AttentionLayer) -> int:
    for name in ("num_heads", "num_attention_heads", "n_heads"):
        if isinstance(heads := getattr(layer.module, name, None), int):
            return heads
    return config_of(layer.module).num_attention_heads


def _device(layer: AttentionLayer) -> torch.device:
    # offloaded by accelerate: on the meta device between calls, which run on another device
    # private: accelerate has no public way to its hooks
    hooks = [getattr(module, "_hf_hook", None) for module in layer.module.modules()]
    flat = [one for hook in hooks for one in getattr(hook, "hooks", (hook,))]
    devices = [d for h in flat if (d := getattr(h, "execution_device", None)) is not None]
    places = [p.device for p in layer.module.parameters()]
    # in a model that is being loaded, torch makes some elsewhere than on the meta device
    devices += sorted(places, key=lambda place: place.type != "meta")
    return torch.device(devices[0]) if devices else torch.device("cpu")

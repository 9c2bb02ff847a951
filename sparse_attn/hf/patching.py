"""Patch the attention of a Transformers model with mappings, and unpatch it."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_attn.hf.adapters import release_adapters, watch_adapters
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import (
    Patch,
    config_states,
    configs_of,
    own_configs,
    patch_of,
    restore_configs,
    unmark,
    with_parts,
)
from sparse_attn.hf.descriptions import describe, mappings_of, show_parts
from sparse_attn.hf.entries import is_learned
from sparse_attn.hf.hooks import (
    add_hooks,
    add_layer_hooks,
    drop_hooks,
    keep_key,
    remove_hooks,
    set_mapping,
)
from sparse_attn.hf.layers import (
    AttentionLayer,
    attention_layers,
    config_of,
    has_sinks,
    input_size,
    root_of,
)
from sparse_attn.hf.refusals import refuse, refuse_lost_parameters, refuse_sinks
from sparse_attn.hf.wrapper_classes import update_holders
from sparse_attn.mappings import Mapping, get_spec
from sparse_attn.mappings.module import check_by_query, refresh

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
            a model loaded without its learned parameters (see
            `load_pretrained`), or parameters to learn in a model on the meta device.
        TypeError: an unknown parameter, or a model that is not from Transformers.
        RuntimeError: another version of this library wrote the config of the model.
    """
    if per not in ("layer", "head", "query"):
        raise ValueError(f"per={per!r}: expected 'layer', 'head' or 'query'")
    root = root_of(model)
    found = attention_layers(root)
    refuse(root, found)
    if not is_patched(root):
        refuse_lost_parameters(root)
    chosen = found if layers is None else _select(root, found, layers)
    # all are built before the first is set, so that a wrong argument does not change the model
    install(root, found, {c.name: make_mapping(c, mapping, learn, per, parameters) for c in chosen})
    update_holders(model)
    return model


def unpatch_model(model: ModelT) -> ModelT:
    """Restore a patched `model` in place: outputs, state_dict keys and config.

    Raises:
        ValueError: the model is not patched.
        TypeError: a model that is not from Transformers.
    """
    root = root_of(model)
    patch = patch_of(root, NAME)
    if patch is None:
        remedy = "call patch_model first"
        if NAME in vars(root.config):  # a patched model loaded by a plain from_pretrained
            remedy = "load it with sparse_attn.load_pretrained"
        raise ValueError(f"{type(root).__name__} is not patched; {remedy}")
    found = attention_layers(root)
    for layer in found:
        set_mapping(layer.module, None)
    remove_hooks(root, found)
    drop_hooks(root, _check_layers)
    for config, implementation, weights in patch.kept.before:
        # private: configs have no public name for their attention implementation
        config._attn_implementation = implementation
        # private: output_attentions may refuse what it was
        config._output_attentions = weights
    unmark(root, NAME)
    release_adapters(root)
    update_holders(model)
    return model


@contextmanager
def patched(model: ModelT, mapping: str, **arguments: Any) -> Iterator[ModelT]:
    """Patch the model for a block, then restore it: `with patched(model, "sparsemax"): ...`.

    An already patched model gets its mappings back.

    Args:
        model, mapping, **arguments: as `patch_model`, as are errors.
    """
    root = root_of(model)
    states, before = config_states(root), {}
    if is_patched(root):
        before = {layer.name: getattr(layer.module, NAME) for layer in attention_layers(root)}
    patch_model(model, mapping, **arguments)
    try:
        yield model
    finally:
        if before:
            install(root, attention_layers(root), before)
            update_holders(model)
        elif is_patched(root):  # the block may have unpatched it
            unpatch_model(model)
        # a model loaded without its mappings must keep raising
        restore_configs(states)


def is_patched(model: nn.Module) -> bool:
    """Whether `patch_model` has been called on this model."""
    return patch_of(root_of(model), NAME) is not None


def set_parameter(model: nn.Module, name: str, value: float, ends: Sequence[float] = ()) -> None:
    """Set a fixed parameter in all mappings that have it; the values `ends` are checked first.

    A patched model is not searched again for attention modules while they are in place.

    Raises:
        ValueError: out of range, or no mapping of the model has this fixed parameter.
    """
    root = root_of(model)
    patch = patch_of(root, NAME)
    layers = attention_layers(root) if patch is None else _layers_now(root, patch)
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
    if patch is None:
        show_parts(root)
    elif not patch.is_shown():
        patch.show()


def _layers_now(root: PreTrainedModel, patch: Patch) -> list[AttentionLayer]:
    """Return the attention modules; search again if PEFT wrapped some or layers were added."""
    if any(tuple(m.children()) != children for m, children in patch.kept.around):
        found = _Kept(*_attention_modules(root), patch.kept.before)
        if new := _without_mapping(found.layers):
            raise RuntimeError(
                f"{new[0].name} was added to {type(root).__name__} after patch_model, and would "
                f"compute softmax; call patch_model(model, ..., layers=[{new[0].block}])"
            )
        refuse(root, found.layers)
        patch.kept = found
    return patch.kept.layers


def _without_mapping(layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
    return [layer for layer in layers if not hasattr(layer.module, NAME)]


def _check_layers(root: PreTrainedModel, args: Any) -> None:
    """Forward pre-hook: raise for attention without a mapping."""
    if torch.compiler.is_dynamo_compiling():
        return
    if (patch := patch_of(root, NAME)) is not None:
        layers = _layers_now(root, patch)
        # what writes to the buffers writes to all of them, as DDP does before each call
        if any(mapping.changed_buffers() for mapping in mappings_of(layers[0])):
            refresh(mapping for layer in layers for mapping in mappings_of(layer))


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


class _Kept(NamedTuple):
    """State of a patched model: its attention modules, and its configs' previous entries.

    around: the modules that contain the attention modules, and their children.
    """

    layers: list[AttentionLayer]
    around: list[tuple[nn.Module, tuple[nn.Module, ...]]]
    before: list[tuple[PreTrainedConfig, str | None, bool]]


def _attention_modules(
    root: PreTrainedModel,
) -> tuple[list[AttentionLayer], list[tuple[nn.Module, tuple[nn.Module, ...]]]]:
    """Return the first two entries of `_Kept`."""
    found = attention_layers(root)
    dots = [(layer.name, i) for layer in found for i, c in enumerate(layer.name) if c == "."]
    parents = [root, *map(root.get_submodule, dict.fromkeys(name[:i] for name, i in dots))]
    return found, [(parent, tuple(parent.children())) for parent in parents]


def install(
    root: PreTrainedModel, found: list[AttentionLayer], mappings: abc.Mapping[str, nn.Module]
) -> None:
    """Set these mappings by layer; other layers without a mapping compute softmax."""
    own_configs(root)
    patch, new = patch_of(root, NAME), _without_mapping(found)
    for layer in found:
        if layer.name in mappings:
            set_mapping(layer.module, mappings[layer.name])
        elif layer in new:
            set_mapping(layer.module, make_mapping(layer, "softmax"))
    if patch is None:
        _switch_on(root, found)
        return
    add_layer_hooks(new)
    theirs = with_parts(config_of(layer.module) for layer in new)
    before = _switch([c for c in theirs if c._attn_implementation != NAME])
    patch.kept = _Kept(*_attention_modules(root), [*patch.kept.before, *before])
    patch.show()


def _switch_on(root: PreTrainedModel, found: list[AttentionLayer]) -> None:
    """Make the model dispatch its attention to us."""
    weights = root.config.output_attentions
    usual = "eager" if weights else root.get_correct_attn_implementation(None)
    before = [  # the config of a loaded patched model already asks for our attention
        (config, usual if named == NAME else named, asked)
        for config, named, asked in _switch(configs_of(root))
    ]
    # besides `_switch`, because Transformers 5.17 does not reach T5's two stacks
    root.set_attn_implementation(NAME)
    add_hooks(root, found, weights)
    keep_key(root.register_forward_pre_hook(_check_layers))
    Patch(root, NAME, describe, _Kept(*_attention_modules(root), before))
    watch_adapters(root)


def _switch(configs: Sequence[PreTrainedConfig]) -> list[tuple[PreTrainedConfig, str | None, bool]]:
    """Make these configs ask for our attention; return what they asked for before."""
    before = [(c, c._attn_implementation, c.output_attentions) for c in configs]
    for config in configs:
        config.output_attentions = False
        config._attn_implementation = NAME
    return before


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
    if "query_size" in values:
        raise TypeError(
            f"query_size={values['query_size']!r}: unknown parameter; with per='query' it is that "
            "of the layer"
        )
    if per == "query":
        check_by_query(get_spec(name), "per='query'")
    num_heads = _number_of_heads(layer) if per != "layer" else None
    query_size = input_size(layer) if per == "query" else None
    device = _device(layer)
    if device.type == "meta" and is_learned(name, learn, per):
        raise ValueError(
            f"{name}: its learned parameters cannot start on the meta device, where {layer.name} "
            "is; load the weights first, then patch the model"
        )
    mapping = Mapping(name, learn=learn, num_heads=num_heads, query_size=query_size, **values)
    if has_sinks(layer.module):
        refuse_sinks(layer, mapping)
    return mapping.to(device).train(layer.module.training)


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
    devices += [p.device for p in layer.module.parameters()]
    return torch.device(devices[0]) if devices else torch.device("cpu")

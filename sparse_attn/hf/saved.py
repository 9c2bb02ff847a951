"""Make the mappings that a config describes, wherever Transformers builds or loads a model.

Importing this module wraps two members of `PreTrainedModel`, which do nothing for a model whose
config and weights have no mappings, and adds one that PEFT sets.
"""

from __future__ import annotations

import functools
import re
from textwrap import shorten
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from sparse_attn.hf.adapters import Adapters
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import (
    GUARDS,
    HEAD,
    KEYS,
    MULTILABEL,
    configs_of,
    models_in,
    own_configs,
    with_parts,
)
from sparse_attn.hf.entries import AS_WRITTEN, check_entry, tables_for
from sparse_attn.hf.heads import lm, multilabel
from sparse_attn.hf.heads.installing import PatchedHead, plain_linear
from sparse_attn.hf.layers import attention_layers, mappings_of
from sparse_attn.hf.patching import install, make_mapping, set_mappings
from sparse_attn.hf.refusals import refuse
from sparse_attn.mappings import Mapping

# attribute of a model that has its own copy of a config: the id of the one it was made of
MADE_OF = "_sparse_attn_made_of"

OURS = rf"\.({NAME}|mapping)\."  # pattern of the names of values

# what an entry of another form raises while mappings are made of it
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def _install_attention(model: PreTrainedModel, saved: dict[str, Any]) -> None:
    """Install the mappings; a model that they do not fit waits for the one around it."""
    found = attention_layers(model)
    tables = tables_for(saved, [layer.name for layer in found])
    if tables is None:
        # private: its calls raise; the setter would switch the configs of its parts, too
        model.config._attn_implementation_internal = NAME
        return
    refuse(model, found)
    made = {
        layer.name: make_mapping(layer, t["mapping"], t["learn"], t["per"], t["params"])
        for layer in found
        for t in [tables[layer.name]]
    }
    if saved.get("output_attentions"):
        # private: the public one refuses it beside our attention
        model.config._output_attentions = True
    if saved["version"] == 1:
        install(model, found, made)
        return
    set_mappings(model, found, made)
    for name, mapping in made.items():  # the entry may describe a model around this one, too
        tables[name]["params"] = mapping.describe()["params"]


INSTALL = {
    NAME: _install_attention,
    HEAD: lm.install_described,
    MULTILABEL: multilabel.install_described,
}


def _install_described(model: PreTrainedModel) -> None:
    inside = [vars(part) for _, part in models_in(model)]
    given = id(model.config)
    own_configs(model, {id(part["config"]): part[MADE_OF] for part in inside if MADE_OF in part})
    if id(model.config) != given:
        vars(model)[MADE_OF] = given
    entries = {key: vars(model.config)[key] for key in KEYS if key in vars(model.config)}
    before = set(model.modules())
    for key, entry in entries.items():
        try:
            check_entry(key, entry)
            INSTALL[key](model, entry)
        except MALFORMED as error:
            if str(error).startswith(f"config.{key}:"):  # with a remedy of its own
                raise
            why = shorten(f"{type(error).__name__}: {error}", 300)
            raise ValueError(f"config.{key}: {why}; {AS_WRITTEN}") from error
    if entries:
        model.config.attn_implementation = NAME  # what is saved; a load takes it out
    for config in configs_of(model):
        # private: the name without `_internal` sets that of the parts too
        if NAME not in vars(config) and config._attn_implementation in GUARDS:
            config._attn_implementation_internal = model.get_correct_attn_implementation(None)
    if any(entry["version"] == 1 for entry in entries.values()):
        _expect_no_values(model, [m for m in model.modules() if m not in before])


def _expect_no_values(model: PreTrainedModel, made: list[nn.Module]) -> None:
    """Let a checkpoint of version 1 lack fixed values, which are in its config."""
    names = {name for m in made if isinstance(m, Mapping) for name, _ in m.named_buffers()}
    if names:
        expected = {rf"{OURS}({'|'.join(sorted(names))})$"}
        # private: a model has no public list of weights that a checkpoint may lack
        known = model._keys_to_ignore_on_load_missing or ()
        model._keys_to_ignore_on_load_missing = {*known, *expected}


def _with_mappings(original: Any) -> Any:
    """Wrap PreTrainedModel.post_init, which every class calls at the end of its `__init__`."""

    @functools.wraps(original)
    def post_init(self: PreTrainedModel) -> None:
        if any(key in vars(config) for config in with_parts([self.config]) for key in KEYS):
            _install_described(self)
        original(self)

    return post_init


def _checked(original: Any) -> Any:
    """Wrap PreTrainedModel._finalize_model_loading: every mapping must have been loaded."""

    @functools.wraps(original)
    def finalize(model: PreTrainedModel, load_config: Any, info: Any) -> Any:
        path = load_config.pretrained_model_name_or_path
        refuse_unfit(model)
        # read before Transformers leaves out what a class lets a checkpoint lack
        lost = {*info.missing_keys, *(name for name, *_ in info.mismatched_keys)}
        _refuse_lost(model, path, lost)
        _refuse_undescribed(model, path, info.unexpected_keys)
        result = original(model, load_config, info)
        for place, module in model.named_modules():
            if isinstance(module, PatchedHead) and lost & {f"{place}.weight", f"{place}.bias"}:
                # private: Transformers initialises the weights of layers that it knows alone
                model._init_weights(plain_linear(module))
            if isinstance(module, Mapping):
                module.take_back()
        return result

    return staticmethod(finalize)


def refuse_unfit(model: PreTrainedModel) -> None:
    """Raise for a model whose config describes the mappings of other attention modules."""
    for _, part in models_in(model):
        if (entry := vars(part.config).get(NAME)) is None:
            continue
        layers = attention_layers(part)
        if all(map(mappings_of, layers)):
            continue
        saved = [*entry["mappings"]] if isinstance(entry["mappings"], dict) else "positions"
        raise RuntimeError(
            f"config.{NAME}: it describes mappings of {saved}, but {type(part).__name__} has the "
            f"attention modules {[layer.name for layer in layers]}; load with the class that was "
            "saved"
        )


def _refuse_lost(model: PreTrainedModel, path: Any, lost: set[str]) -> None:
    """Raise for values of mappings and patched heads that the weights lack."""
    # private: see `_expect_no_values`
    known = [p for p in model._keys_to_ignore_on_load_missing or () if p.startswith(OURS)]
    lost = {name for name in lost if not any(re.search(pattern, name) for pattern in known)}
    for place, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, (Mapping, PatchedHead)):
            continue
        own = {f"{place}.{name}" for name in {*module.state_dict()} - {"weight", "bias"}}
        if names := sorted(lost & own):
            raise RuntimeError(
                f"{path}: its config describes mappings, but its weights lack "
                f"{', '.join(names[:3])}, or have another shape; restore both as they were saved. "
                "If a process without sparse_attn has saved them, it computed softmax: to go on "
                f"so, delete {', '.join(KEYS)} and attn_implementation from config.json"
            )


def _ends_as(path: str, other: str) -> bool:
    """Whether one of two paths is the end of the other."""
    return f".{path}".endswith(f".{other}") or f".{other}".endswith(f".{path}")


def _refuse_undescribed(model: PreTrainedModel, path: Any, unexpected: set[str]) -> None:
    """Raise for weights of mappings that the config does not describe."""
    # of attention modules whose other weights are loaded: the others are not in this class
    apart = {key for key in unexpected if f".{NAME}." not in key}
    of_attention, of_heads = unexpected - apart, [key for key in apart if ".mapping." in key]
    if not (of_attention or of_heads):  # as of most plain models
        return
    layers = attention_layers(model)
    lost = [
        key
        for key in of_attention
        for module in [key.partition(f".{NAME}.")[0]]
        if not any(other.startswith(f"{module}.") for other in apart)
        and any(_ends_as(module, layer.name) for layer in layers)
    ]
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is nn.Linear:  # heads keep their mapping there
            lost += [key for key in of_heads if key.startswith(f"{name}.mapping.")]
    if lost:
        raise ValueError(
            f"{path}: its weights hold {', '.join(sorted(lost)[:3])}, but the config describes no "
            "mapping, so that the model would compute softmax; leave config out, or restore "
            "config.json; and patch the whole where only a part was, which has a config of its "
            "own, such as T5's encoder"
        )


# private: the public members begin before a model is built, or know nothing of its weights
PreTrainedModel.post_init = _with_mappings(PreTrainedModel.post_init)
PreTrainedModel._finalize_model_loading = _checked(PreTrainedModel._finalize_model_loading)
PreTrainedModel.peft_config = Adapters()

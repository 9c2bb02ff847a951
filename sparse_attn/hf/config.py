"""Config entry of a patched model, read from its modules whenever it is saved."""

from __future__ import annotations

import copy
import weakref
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_attn.hf.attention import NAME
from sparse_attn.hf.hooks import drop_hooks, keep_key
from sparse_attn.hf.layers import attention_layers

HEAD = "sparse_attn_head"  # config entry of `patch_lm_head`, beside NAME for the attention
MULTILABEL = "sparse_attn_multilabel"  # and of `patch_multilabel_head`
# function that makes each entry
PATCHERS = {NAME: "patch_model", HEAD: "patch_lm_head", MULTILABEL: "patch_multilabel_head"}
KEYS = tuple(PATCHERS)
INSTALLED = "_sparse_attn_installed"  # attribute of a patched head with its entry's key
VERSION = 1
# not an attention, so a plain from_pretrained fails for models with only a patched head
ONLY_BY_US = "sparse_attn.load_pretrained"
# entries that `patch_model` changes in a config
# private: a config keeps them by these names, and has no public ones
SWITCHED = (NAME, "attn_implementation", "_attn_implementation_internal", "_output_attentions")


class Snapshot(dict[str, Any]):
    """Patch entry copied from a model in memory; an entry read from a file is a plain dict."""


# computes a config entry when called; holds mappings, not the model
Description: TypeAlias = Callable[[], dict[str, Any]]


def snapshot(description: Description) -> Snapshot:
    """Copy the current config entry into new plain lists and dicts."""
    return Snapshot({"version": VERSION, **copy.deepcopy(description())})


class PatchConfig(abc.Mapping[str, Any]):
    """Read-only description of a patched model, derived from the model on every read.

    Copies of a config (such as `to_dict`) and pickles hold a `Snapshot`. If the model is gone or no
    longer patched, this keeps describing its last mappings, which a surviving part may still have.
    """

    def __init__(self, model: weakref.ref[PreTrainedModel], key: str) -> None:
        self._model, self._key = model, key
        self._last: Description = dict

    def read(self) -> Snapshot:
        """Return the whole entry in new plain lists and dicts."""
        model = self._model()
        patch = None if model is None else patch_of(model, self._key)
        if patch is not None:
            self._last = patch.describe(model, patch.kept)
        return snapshot(self._last)

    def is_of(self, model: nn.Module, key: str) -> bool:
        """Whether the entry belongs to this model."""
        return self._key == key and self._model() is model

    def is_foreign(self, root: nn.Module) -> bool:
        """Whether the entry belongs to a patched model that is neither around nor inside `root`."""
        other = self._model()
        if other is None or patch_of(other, self._key) is None:
            return False
        return not any(m is root for m in other.modules()) and other not in set(root.modules())

    def __getitem__(self, key: str) -> Any:
        return self.read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())

    def __repr__(self) -> str:
        return repr(self.read())

    def __deepcopy__(self, memo: dict[int, Any]) -> Snapshot:
        return self.read()

    def __reduce__(self) -> tuple[type[Snapshot], tuple[Snapshot]]:
        return Snapshot, (self.read(),)


class Patch:
    """Mark of a patched model, its attribute `_` + key; the model's configs have a `PatchConfig`.

    A copied or pickled model has configs that read its own modules.

    Args:
        model: the patched model.
        key: one of KEYS.
        describe: returns the config entry, a `Description`, from the current model and `kept`; a
            module-level function, so that it can be pickled.
        kept: data for unpatching.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        key: str,
        describe: Callable[[Any, Any], Description],
        kept: Any,
    ) -> None:
        self.key, self.describe, self.kept = key, describe, kept
        self.configs: list[PreTrainedConfig] = []
        self.is_saved = True  # False for a model that is saved as a plain one
        self.implementation = NAME if attention_layers(model) else ONLY_BY_US
        self._model = weakref.ref(model)
        if not any(patch_of(model, other) for other in KEYS):
            keep_key(model.register_forward_pre_hook(_complete_configs))
            keep_key(model.register_state_dict_pre_hook(_refuse_lost_configs))
        setattr(model, f"_{key}", self)
        self.show()

    def show(self) -> None:
        """Put the entry into the model's current configs."""
        model = self._model()
        assert model is not None
        self.configs = configs_of(model)
        shown = PatchConfig(self._model, self.key)
        for config in self.configs:
            setattr(config, self.key, shown)
            # the public name is saved, so that a plain from_pretrained fails loudly
            config.attn_implementation = self.implementation
        shown.read()  # keeps the entry in case the model is deleted

    def is_shown(self) -> bool:
        """Whether the config has this entry; it may have been replaced or hold another model's."""
        model = self._model()
        shown = None if model is None else vars(model.config).get(self.key)
        if model is None or not isinstance(shown, PatchConfig):
            return False
        return shown.is_of(model, self.key)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_model": self._model()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _model=weakref.ref(state["_model"]))
        for config in self.configs:
            if self.key in vars(config):
                setattr(config, self.key, PatchConfig(self._model, self.key))


def patch_of(model: nn.Module, key: str) -> Patch | None:
    """Return the mark of a patched `model`; None if it is not patched, or only a part of it is."""
    return vars(model).get(f"_{key}")


def unmark(root: PreTrainedModel, key: str) -> None:
    """Remove the mark from the model and the entry from its configs."""
    vars(root).pop(f"_{key}", None)
    hide(root, key)
    if not any(patch_of(root, other) for other in KEYS):
        drop_hooks(root, _complete_configs, _refuse_lost_configs)


def _missing_patches(root: PreTrainedModel) -> list[Patch]:
    """Return the patches missing in the model's config; raise if an entry was overwritten."""
    found = []
    for key, patcher in PATCHERS.items():
        patch = patch_of(root, key)
        if patch is None or not patch.is_saved or patch.is_shown():
            continue
        if not isinstance(vars(root.config).get(key, Snapshot()), (PatchConfig, Snapshot)):
            raise RuntimeError(
                f"config.{key} was overwritten, which changes nothing in the model; delete it, and "
                f"call {patcher} to change the model"
            )
        found.append(patch)
    return found


def _complete_configs(root: PreTrainedModel, args: Any) -> None:
    """Forward pre-hook: show the patches in a config that replaced the model's."""
    if torch.compiler.is_compiling():
        return
    for patch in _missing_patches(root):
        own_configs(root)
        patch.show()


def _refuse_lost_configs(root: PreTrainedModel, prefix: str, keep_vars: bool) -> None:
    """Pre-hook of state_dict, after the config is saved: raise if the config lacks a patch."""
    for patch in _missing_patches(root):
        if patch.key not in vars(root.config):
            raise RuntimeError(
                f"{type(root).__name__}: its config was replaced by one without {patch.key}, so it "
                "would load as a plain model; call the model once, then save it"
            )


def hide(root: PreTrainedModel, key: str) -> None:
    """Remove this patch from the configs."""
    for config in configs_of(root):
        vars(config).pop(key, None)
        if not any(other in vars(config) for other in KEYS):
            vars(config).pop("attn_implementation", None)


def own_configs(root: PreTrainedModel) -> None:
    """Copy the model's configs if another patched model uses them.

    Models built from one config object share it, and saving either would save the last patch.
    """
    configs = configs_of(root)
    entries = [vars(config).get(key) for config in configs for key in KEYS]
    if not any(isinstance(entry, PatchConfig) and entry.is_foreign(root) for entry in entries):
        return
    memo: dict[int, Any] = {}
    copies = {id(config): copy.deepcopy(config, memo) for config in configs}
    for module in root.modules():
        if (own := copies.get(id(getattr(module, "config", None)))) is not None:
            module.config = own
    for key in KEYS:
        hide(root, key)
        if (patch := patch_of(root, key)) is not None:
            patch.show()


def configs_of(root: nn.Module) -> list[PreTrainedConfig]:
    """Return every config object of the model once, parents before children."""
    held = [getattr(module, "config", None) for module in root.modules()]
    return with_parts(config for config in held if isinstance(config, PreTrainedConfig))


def with_parts(configs: Iterable[PreTrainedConfig]) -> list[PreTrainedConfig]:
    """Return the configs and their sub-configs, each object once."""
    queue = list(configs)
    unique: dict[int, PreTrainedConfig] = {}
    while queue:
        config = queue.pop(0)
        if id(config) not in unique:
            unique[id(config)] = config
            queue += [c for key in config.sub_configs if (c := getattr(config, key, None))]
    return list(unique.values())


def config_states(root: PreTrainedModel) -> list[tuple[PreTrainedConfig, dict[str, Any]]]:
    """Return the attention entries of every config, for `restore_configs`."""
    return [
        (c, {key: vars(c)[key] for key in SWITCHED if key in vars(c)}) for c in configs_of(root)
    ]


def restore_configs(states: list[tuple[PreTrainedConfig, dict[str, Any]]]) -> None:
    """Restore the entries that `config_states` returned."""
    for config, state in states:
        for key in SWITCHED:
            vars(config).pop(key, None)
        vars(config).update(state)

"""What the config of a patched model says of it: read from its modules whenever it is saved."""

from __future__ import annotations

import copy
import weakref
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_attn.attention import NAME
from sparse_attn.layers import attention_layers

HEAD = "sparse_attn_head"  # config entry of `patch_lm_head`, beside NAME for the attention
MULTILABEL = "sparse_attn_multilabel"  # and of `patch_multilabel_head`
KEYS = (NAME, HEAD, MULTILABEL)
VERSION = 1
# asked for by a patched model without attention: there is none, so a plain from_pretrained fails
ONLY_BY_US = "sparse_attn.load_pretrained"
# what `patch_model` changes in a config
SWITCHED = (NAME, "attn_implementation", "_attn_implementation_internal", "_output_attentions")


class Snapshot(dict[str, Any]):
    """A patch config that a model in memory has written out; one read from a file is a dict."""


# what a config says, worked out when it is called; keeps mappings and not the model
Description: TypeAlias = Callable[[], dict[str, Any]]


def snapshot(description: Description) -> Snapshot:
    """What a config says now, as plain lists and dicts that are the caller's own."""
    return Snapshot({"version": VERSION, **copy.deepcopy(description())})


class PatchConfig(abc.Mapping[str, Any]):
    """What a patched model is, worked out from it whenever this is read; not to be written to.

    Copies of a config, `to_dict` among them, and pickles hold it written out. Where the model is
    gone, or not patched any more, this goes on with the mappings that it last had: a part of the
    model that is still there has them.
    """

    def __init__(self, model: weakref.ref[PreTrainedModel], key: str) -> None:
        self._model, self._key = model, key
        self._last: Description = dict

    def read(self) -> Snapshot:
        """All of it, as plain lists and dicts that are the caller's own."""
        model = self._model()
        patch = None if model is None else patch_of(model, self._key)
        if patch is not None:
            self._last = patch.describe(model, patch.kept)
        return snapshot(self._last)

    def is_of(self, model: nn.Module, key: str) -> bool:
        """Whether it is this model's."""
        return self._key == key and self._model() is model

    def is_foreign(self, root: nn.Module) -> bool:
        """Whether it is that of a patched model which is neither a part of `root` nor around it."""
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
    """The mark of a patched model, its attribute `_` + key; the configs then have a `PatchConfig`.

    A copy of the model, or one that was pickled, has configs that read its own modules.

    Args:
        model: what was patched.
        key: one of KEYS.
        describe: what the config says, a `Description` of the model as it is now and of `kept`; a
            function of a module, so that it can be pickled.
        kept: what unpatching needs.
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
        self.implementation = NAME if attention_layers(model) else ONLY_BY_US
        self._model = weakref.ref(model)
        setattr(model, f"_{key}", self)
        self.show()

    def show(self) -> None:
        """Have the configs that the model has now say it."""
        model = self._model()
        assert model is not None
        self.configs = configs_of(model)
        shown = PatchConfig(self._model, self.key)
        for config in self.configs:
            setattr(config, self.key, shown)
            # the public name is the one that is saved: a plain from_pretrained then fails loudly
            config.attn_implementation = self.implementation
        shown.read()  # what it then was, should the model go

    def is_shown(self) -> bool:
        """Whether the config says it; it may have been replaced, or another model's may do."""
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
    """The mark that `model` is patched; None where it is not, or but a part of it."""
    return vars(model).get(f"_{key}")


def unmark(root: PreTrainedModel, key: str) -> None:
    """The model is not patched any more, and its configs say nothing of it."""
    vars(root).pop(f"_{key}", None)
    hide(root, key)


def hide(root: PreTrainedModel, key: str) -> None:
    """Have the configs say nothing of this patch."""
    for config in configs_of(root):
        vars(config).pop(key, None)
        if not any(other in vars(config) for other in KEYS):
            vars(config).pop("attn_implementation", None)


def check_version(key: str, saved: dict[str, Any]) -> None:
    """Raise RuntimeError for what another version of this library saved."""
    if saved["version"] != VERSION:
        raise RuntimeError(
            f"config.{key}: expected version {VERSION}, got {saved['version']}; load it with the "
            "version of sparse-attn that wrote it"
        )


def refuse_lost_head(root: PreTrainedModel) -> None:
    """Raise for a model that was saved with a patched head and loaded without it."""
    lost = {
        HEAD: type(root.get_output_embeddings()) is nn.Linear,
        MULTILABEL: patch_of(root, MULTILABEL) is None,
    }
    for key in lost:
        entry = vars(root.config).get(key)
        # another model of this config has a head in memory: `own_configs` sees to that
        others = isinstance(entry, PatchConfig) and entry.is_foreign(root)
        if entry is not None and lost[key] and not others:
            raise ValueError(
                f"the config of {type(root).__name__} describes a patched head, which was not "
                "loaded; use sparse_attn.load_pretrained(cls, path), or, if the head is to be the "
                f"plain one, delete config.{key}"
            )


def own_configs(root: PreTrainedModel) -> None:
    """Give the model copies of its configs where another patched model speaks through them.

    Models that are built from one config object share it, and what is saved of either would be what
    was patched last.
    """
    configs = configs_of(root)
    said = [vars(config).get(key) for config in configs for key in KEYS]
    if not any(isinstance(entry, PatchConfig) and entry.is_foreign(root) for entry in said):
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
    """Every config object of the model once, parents before children."""
    held = [getattr(module, "config", None) for module in root.modules()]
    return with_parts(config for config in held if isinstance(config, PreTrainedConfig))


def with_parts(configs: Iterable[PreTrainedConfig]) -> list[PreTrainedConfig]:
    """These configs and those inside them, each object once."""
    queue = list(configs)
    unique: dict[int, PreTrainedConfig] = {}
    while queue:
        config = queue.pop(0)
        if id(config) not in unique:
            unique[id(config)] = config
            queue += [c for key in config.sub_configs if (c := getattr(config, key, None))]
    return list(unique.values())


def config_states(root: PreTrainedModel) -> list[tuple[PreTrainedConfig, dict[str, Any]]]:
    """What every config says of the attention, for `restore_configs`."""
    return [
        (c, {key: vars(c)[key] for key in SWITCHED if key in vars(c)}) for c in configs_of(root)
    ]


def restore_configs(states: list[tuple[PreTrainedConfig, dict[str, Any]]]) -> None:
    """Have the configs say what they said before."""
    for config, state in states:
        for key in SWITCHED:
            vars(config).pop(key, None)
        vars(config).update(state)

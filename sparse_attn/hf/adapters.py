"""PEFT adapters of a patched base, which PEFT saves without it."""

from __future__ import annotations

import copy
import re
import weakref
from collections import abc
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import HEAD, KEYS, MULTILABEL
from sparse_attn.hf.hooks import drop_hooks, keep_key

# modules that an adapter of a patched base excludes, as a mark: the entry's key, and an added
# module
MARKS = {NAME: (NAME,), HEAD: (HEAD, "mapping"), MULTILABEL: (MULTILABEL, "mapping")}
UNMARKED = "_sparse_attn_unmarked"  # on an adapter's config: the user's config
_watched = weakref.WeakSet[nn.Module]()
ADAPTERS = "peft_config"  # PEFT's attribute for the configs of a model's adapters, by name


def watch_adapters(root: PreTrainedModel) -> None:
    """Mark the adapters of a patched model from its next call on.

    Not at once, because PEFT still changes the config of an adapter while it adds it.
    """
    keep_key(root.register_forward_pre_hook(_mark_at_call))
    _watched.add(root)


def release_adapters(root: PreTrainedModel) -> None:
    """Restore the adapters' configs, except the marks of another patch of the model."""
    if not _patched_keys(root):
        drop_hooks(root, _mark_at_call)
        _watched.discard(root)
    adapters = getattr(root, ADAPTERS, {})
    adapters.update({n: getattr(config, UNMARKED, config) for n, config in adapters.items()})
    _mark_adapters(root)


def refuse_adapters(root: nn.Module, adapters: Any) -> None:
    """Raise for an adapter of a patched base on a plain one."""
    held = {key for module in root.modules() for key in _patched_keys(module)}
    for name, config in adapters.items() if isinstance(adapters, abc.Mapping) else ():
        if lost := sorted(_marks_of(config) - held):
            raise ValueError(
                f"adapter {name!r} was trained on a patched base ({', '.join(lost)}), but "
                f"{type(root).__name__} is not patched so, and its outputs would be wrong; load "
                "the base as it was saved, or patch it, then load the adapter"
            )


class Adapters:
    """Descriptor for PreTrainedModel.peft_config, which PEFT sets with the first adapter."""

    def __get__(self, model: PreTrainedModel | None, owner: Any) -> Any:
        if model is None or ADAPTERS not in vars(model):
            raise AttributeError(ADAPTERS)
        return vars(model)[ADAPTERS]

    def __set__(self, model: PreTrainedModel, adapters: Any) -> None:
        refuse_adapters(model, adapters)
        vars(model)[ADAPTERS] = adapters

    def __delete__(self, model: PreTrainedModel) -> None:
        if ADAPTERS not in vars(model):
            raise AttributeError(ADAPTERS)
        del vars(model)[ADAPTERS]


def _mark_at_call(root: PreTrainedModel, args: Any) -> None:
    """Forward pre-hook: mark the adapters, also when a graph is made."""
    if torch.compiler.is_compiling():
        _mark_all()
    else:
        _mark_adapters(root)


@torch.compiler.assume_constant_result
def _mark_all() -> bool:
    """Mark all watched models while a graph is made, because Dynamo passes no model here."""
    for root in list(_watched):
        _mark_adapters(root)
    return True


def _mark_adapters(root: nn.Module) -> None:
    """Add the marks to the exclude_modules of the adapters' configs, which PEFT saves."""
    keys = _patched_keys(root)
    adapters = getattr(root, ADAPTERS, {})
    for name, config in list(adapters.items()):
        if keys and hasattr(config, "exclude_modules") and not set(keys) <= _marks_of(config):
            given = getattr(config, UNMARKED, config)
            marked = copy.copy(given)
            marked.exclude_modules = _with_marks(given.exclude_modules, keys)
            setattr(marked, UNMARKED, given)
            adapters[name] = marked


def _patched_keys(model: nn.Module) -> list[str]:
    return [key for key in KEYS if key in vars(getattr(model, "config", model))]


def _with_marks(excluded: Any, keys: list[str]) -> str | set[str]:
    marks = {mark for key in keys for mark in MARKS[key]}
    if isinstance(excluded, str) and excluded:
        # after the user's pattern, because flags such as (?i) must come first
        return rf"{excluded}|(?:.*\.)?(?:{'|'.join(sorted(marks))})"
    return {*marks, *(excluded or ())}


def _marks_of(config: Any) -> set[str]:
    excluded = getattr(config, "exclude_modules", None) or ()
    return set(KEYS).intersection(
        re.findall(r"\w+", excluded) if isinstance(excluded, str) else excluded
    )

"""Config entries of patched models, which describe them when they are saved.

They list the very values that the mappings hold, so that they follow `set_value` and schedules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_attn.hf.attention import NAME, ONLY_BY_US
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.values import Values

HEAD = "sparse_attn_head"  # config entry of `patch_lm_head`, beside NAME for the attention
MULTILABEL = "sparse_attn_multilabel"  # and of `patch_multilabel_head`
KEYS = (NAME, HEAD, MULTILABEL)
VERSION = 2
GUARDS = (NAME, ONLY_BY_US)


def hold(mapping: Mapping) -> Mapping:
    """Give a mapping without values a tensor, so that saved weights tell that it was there."""
    if not mapping.state_dict():
        mapping.register_buffer("held", torch.ones(1, dtype=torch.float32, device="cpu"))
    return mapping


def add_entry(config: PreTrainedConfig, key: str, entry: dict[str, Any]) -> None:
    """Write the entry, and what makes Transformers raise where sparse_attn is not imported."""
    setattr(config, key, {"version": VERSION, **entry})
    config.attn_implementation = NAME


def remove_entry(config: PreTrainedConfig, key: str) -> None:
    """Remove the entry."""
    vars(config).pop(key, None)
    if not any(other in vars(config) for other in KEYS):
        vars(config).pop("attn_implementation", None)


def models_in(root: nn.Module) -> list[tuple[str, PreTrainedModel]]:
    """Return the model and the models inside it by name, outer ones first."""
    return [(name, m) for name, m in root.named_modules() if isinstance(m, PreTrainedModel)]


def own_configs(root: PreTrainedModel, made_of: dict[int, int] | None = None) -> None:
    """Give the model its own configs, if another model has the mappings that they describe.

    The copies replace the configs wherever they are held, in the configs around them too.

    Args:
        made_of: of a config that is itself such a copy, by id, the id of the first one.
    """
    configs = configs_of(root)
    held = {id(m._values) for m in root.modules() if isinstance(m, Mapping)}
    if all(id(values) in held for config in configs for values in _values_of(config)):
        return
    memo: dict[int, Any] = {}
    copies = {id(c): copy.deepcopy(c, memo) for c in configs}
    copies |= {new: copies[old] for new, old in (made_of or {}).items() if old in copies}
    for module in root.modules():
        if (own := copies.get(id(getattr(module, "config", None)))) is not None:
            module.config = own


def _values_of(config: PreTrainedConfig) -> Iterator[Values]:
    """Return the values in the entries of a config that a mapping in memory holds."""
    entries = [vars(config)[key] for key in KEYS if isinstance(vars(config).get(key), dict)]
    while entries:
        table = entries.pop()
        entries += [value for value in table.values() if isinstance(value, dict)]
        if isinstance(table, Values):
            yield table


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

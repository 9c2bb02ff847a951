"""What a config says of a patched model: its mappings, and its head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_attn.attention import NAME
from sparse_attn.layers import attention_layers

HEAD = "sparse_attn_head"  # config entry of `patch_lm_head`, beside NAME for the attention
MULTILABEL = "sparse_attn_multilabel"  # and of `patch_multilabel_head`
MULTILABEL_MARK = f"_{MULTILABEL}"  # attribute of a model that has such a head
RECORDS = (NAME, HEAD, MULTILABEL)
RECORD_VERSION = 1
# asked for by a patched model without attention: there is none, so a plain from_pretrained fails
ONLY_BY_US = "sparse_attn.load_pretrained"


class Written(dict[str, Any]):
    """A record that a model in memory has written; one that was read from a file is a dict."""


def check_version(key: str, record: dict[str, Any]) -> None:
    """Raise RuntimeError for a record that another version of this library wrote."""
    if record["version"] != RECORD_VERSION:
        raise RuntimeError(
            f"{key} record: expected version {RECORD_VERSION}, got {record['version']}; load it "
            "with the version of sparse-attn that wrote it"
        )


def set_record(root: PreTrainedModel, key: str, record: dict[str, Any] | None) -> None:
    """Write what was patched, one of RECORDS, into every config; None: nothing."""
    # the public name is the one that is saved: a plain from_pretrained then fails loudly
    implementation = NAME if attention_layers(root) else ONLY_BY_US
    for config in configs_of(root):
        if record is None:
            config.__dict__.pop(key, None)
        else:
            setattr(config, key, Written(record))
        if any(name in vars(config) for name in RECORDS):
            config.attn_implementation = implementation
        else:
            config.__dict__.pop("attn_implementation", None)


def refuse_lost_head(root: PreTrainedModel) -> None:
    """Raise for a model that was saved with a patched head and loaded without it."""
    lost = {
        HEAD: type(root.get_output_embeddings()) is nn.Linear,
        MULTILABEL: not hasattr(root, MULTILABEL_MARK),
    }
    for key in lost:
        if key in vars(root.config) and lost[key]:
            raise ValueError(
                f"the config of {type(root).__name__} describes a patched head, which was not "
                "loaded; use sparse_attn.load_pretrained(cls, path), or, if the head is to be the "
                f"plain one, delete config.{key}"
            )


def configs_of(root: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every config object of the model once, parents before children."""
    configs = [m.config for m in root.modules() if isinstance(m, PreTrainedModel)]
    return with_parts(configs + [config_of(layer.module) for layer in attention_layers(root)])


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
    keys = (NAME, "attn_implementation", "_attn_implementation_internal")
    return [(c, {k: vars(c)[k] for k in keys if k in vars(c)}) for c in configs_of(root)]


def restore_configs(states: list[tuple[PreTrainedConfig, dict[str, Any]]]) -> None:
    """Have the configs say what they said before."""
    for config, state in states:
        for key in (NAME, "attn_implementation"):
            config.__dict__.pop(key, None)
        config.__dict__.update(state)


def config_of(attention: nn.Module) -> PreTrainedConfig:
    return cast(PreTrainedConfig, attention.config)

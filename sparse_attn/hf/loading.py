"""Load a model that was saved with mappings in its attention or its head."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel
from transformers.core_model_loading import WeightRenaming, revert_weight_conversion
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import (
    HEAD,
    KEYS,
    MULTILABEL,
    ONLY_BY_US,
    config_states,
    configs_of,
    patch_of,
    restore_configs,
    with_parts,
)
from sparse_attn.hf.entries import AS_WRITTEN, check_entry
from sparse_attn.hf.heads.lm import head_parameters, restore_head, unpatch_lm_head
from sparse_attn.hf.heads.multilabel import (
    multilabel_parameters,
    restore_multilabel_head,
    unpatch_multilabel_head,
)
from sparse_attn.hf.layers import attention_layers, root_of
from sparse_attn.hf.patching import install, is_patched, make_mapping, unpatch_model
from sparse_attn.hf.plain_loading import FILE_ARGUMENTS, PLACE_ARGUMENTS, expected
from sparse_attn.hf.refusals import refuse
from sparse_attn.hf.wrapper_classes import update_holders
from sparse_attn.system.hub import is_hub_id

HUB_ARGUMENTS = (*FILE_ARGUMENTS, "trust_remote_code", "code_revision")
# private: revert_weight_conversion reads it there
CONVERSIONS = "_weight_conversions"  # where Transformers keeps conversions of names and weights


def load_pretrained(cls: Any, path: str | Path, **kwargs: Any) -> Any:
    """Load a patched model like `cls.from_pretrained(path)`, with mappings and learned parameters.

    Restores a patched attention, a patched head, or both. A class without a head, such as
    AutoModel, omits the head.

    Args:
        cls: a model class or Auto class of Transformers; or a model loaded by a plain
            from_pretrained, or another library's wrapper of one (`SentenceTransformer(path)`),
            which is completed in place.
        path: folder or hub id written by `save_pretrained`.
        **kwargs: passed to `cls.from_pretrained`; `unpatch_model` restores the given
            `attn_implementation`. For a loaded model: the location of its files, such as
            `revision`.

    Returns:
        What `cls.from_pretrained` returns: the model, or a pair with output_loading_info; or the
        completed object.

    Raises:
        ValueError: there is no such folder, the model was not patched when saved, it was saved
            after it had computed softmax, its entries in the config are malformed, or the model
            given for `cls` is already patched.
        TypeError: `cls` is not a model class, `path` is not a path, or `config` is a path instead
            of a config object.
        RuntimeError: the checkpoint does not match its config, or lacks a learned parameter.
    """
    if isinstance(cls, nn.Module):
        check_path(path)
        _complete(root_of(cls), path, kwargs)
        update_holders(cls)
        return cls
    if not hasattr(cls, "from_pretrained"):
        raise TypeError(
            f"cls={cls!r}: expected a model class, such as AutoModel, or a model, before the path"
        )
    check_path(path)
    hub = {name: value for name, value in kwargs.items() if name in HUB_ARGUMENTS}
    implementation = kwargs.pop("attn_implementation", None)
    weights = kwargs.pop("output_attentions", False)
    config = copy.deepcopy(kwargs.pop("config", None))
    if isinstance(config, (str, Path)):
        raise TypeError(f"config={str(config)!r}: expected a config object or nothing, got a path")
    if config is None:
        # "auto" is resolved from the checkpoint, not from the config
        dtype = {name: kwargs.pop(name) for name in ("dtype", "torch_dtype") if name in kwargs}
        config, kwargs = read_config(path, return_unused_kwargs=True, **kwargs)
        kwargs.update(hub, **dtype)
    saved = _pop_entries(config, path)
    # private: configs have no public name for their attention implementation
    config._attn_implementation = implementation
    if weights or saved.get(NAME, {}).get("output_attentions"):
        config.output_attentions = True
    try:
        with expected():
            loaded = cls.from_pretrained(path, config=config, **kwargs)
    except SafetensorError as error:
        raise RuntimeError(f"{path}: its weights are truncated or corrupt ({error})") from error
    model = loaded[0] if isinstance(loaded, tuple) else loaded  # output_loading_info=True
    _restore(root_of(model), saved, path, hub)
    return loaded


def check_path(path: str | Path, option: str = "path") -> None:
    """Raise TypeError for what is no path, and ValueError for a folder that does not exist."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{option}={path!r}: expected a folder or a hub id")
    if Path(path).is_file():
        raise ValueError(f"{option}={str(path)!r}: is a file; name the folder that holds it")
    if not is_hub_id(str(path)) and not Path(path).is_dir():
        hint = "; only commands read pkg://" * str(path).startswith("pkg:")
        raise ValueError(f"{option}={str(path)!r}: there is no such folder{hint}")


def read_config(path: str | Path, **kwargs: Any) -> Any:
    """Return the config in a folder or on the hub.

    Raises:
        ValueError: it is nested too deeply.
        OSError: there is none.
    """
    try:
        return AutoConfig.from_pretrained(path, **kwargs)
    except RecursionError:
        raise ValueError(f"{path}: its config.json is nested too deeply; {AS_WRITTEN}") from None
    except OSError as error:
        where = "" if Path(path).exists() else "; there is no folder of that name either"
        raise OSError(f"{error}{where}") from error


def _complete(root: PreTrainedModel, path: str | Path, hub: dict[str, Any]) -> None:
    """Complete a model that a plain from_pretrained has loaded."""
    if unknown := sorted(hub.keys() - set(FILE_ARGUMENTS)):
        raise TypeError(
            f"{', '.join(unknown)}: expected none but {', '.join(FILE_ARGUMENTS)} for a loaded "
            "model"
        )
    if is_patched(root):
        raise ValueError(f"{type(root).__name__} is already patched; call unpatch_model first")
    file = read_config(path, **hub)
    if any(vars(file).get(key) != vars(root.config).get(key) for key in KEYS):
        raise ValueError(
            f"path={str(path)!r}: its config describes other patches than the model's; "
            "give the folder that the model was loaded from"
        )
    states = config_states(root)
    saved = _pop_entries(root.config, path)
    if NAME not in saved:  # only a head or part is patched, but all configs ask for us
        root.set_attn_implementation(root.get_correct_attn_implementation(None))
    if saved.get(NAME, {}).get("output_attentions"):
        for config in configs_of(root):  # T5's two stacks have copies of the config
            # private: output_attentions refuses True beside our implementation
            config._output_attentions |= type(config) is type(root.config)
    try:
        _restore(root, saved, path, hub)
    except Exception:  # a model without its learned parameters must not run
        for part in [module for module in root.modules() if isinstance(module, PreTrainedModel)]:
            for key in [key for key in KEYS if patch_of(part, key) is not None]:
                UNPATCH[key](part)
        restore_configs(states)
        vars(root.config).update(saved)
        raise


def _restore(
    root: PreTrainedModel, saved: dict[str, Any], path: str | Path, hub: dict[str, Any]
) -> None:
    for key, entry in saved.items():
        try:
            RESTORE[key](root, entry)
        except TypeError as error:  # for an unknown parameter of the mapping
            raise ValueError(f"config.{key}: {error}; {AS_WRITTEN}") from error
    for part in _patched_parts(root) if not saved else ():
        entry = vars(part.config).pop(NAME)
        check_entry(NAME, entry)
        _restore_attention(part, entry)
    _load_learned(root, str(path), {n: v for n, v in hub.items() if n in FILE_ARGUMENTS})


def _pop_entries(config: Any, path: str | Path) -> dict[str, Any]:
    """Move the patch entries out of the config, by key; empty if only a part was patched."""
    saved = {key: vars(config)[key] for key in KEYS if key in vars(config)}
    if not saved and any(NAME in vars(part) for part in with_parts([config])):
        return {}
    if not saved:
        raise ValueError(
            f"path={str(path)!r}: its config, or the one given as config, has neither "
            f"{' nor '.join(map(repr, KEYS))}. If nothing was patched when it was saved, use "
            "from_pretrained, then patch_model, patch_multilabel_head or patch_lm_head"
        )
    # a file and the config of a model in memory both have the name
    implementations = {config._attn_implementation, vars(config).get("attn_implementation")}
    if not implementations & {NAME, ONLY_BY_US}:
        raise ValueError(
            f"path={str(path)!r}: its config describes a patched model, but lacks "
            f"attn_implementation={NAME!r}: the model, or the one that saved it, was loaded by "
            "from_pretrained with another one and computed softmax; if it was trained that way, "
            f"delete {', '.join(map(repr, saved))} from its config, otherwise add the "
            "attn_implementation"
        )
    for key, entry in saved.items():
        check_entry(key, entry)
    for key in saved:
        delattr(config, key)
    return saved


def _patched_parts(root: PreTrainedModel) -> list[PreTrainedModel]:
    """Return the outermost models inside the root whose config describes a patch."""
    parts: list[PreTrainedModel] = []
    for module in root.modules():
        described = isinstance(module, PreTrainedModel) and NAME in vars(module.config)
        if described and not any(module in set(part.modules()) for part in parts):
            parts.append(module)
    return parts


def _restore_attention(root: PreTrainedModel, saved: dict[str, Any]) -> None:
    found = attention_layers(root)
    described = sum(len(entry["modules"]) for entry in saved["mappings"])
    if described != len(found):
        raise RuntimeError(
            f"config.{NAME}: it describes {described} attention modules, but "
            f"{type(root).__name__} has {len(found)}; load with the class that was saved"
        )
    refuse(root, found)
    mappings = {
        layer.name: make_mapping(
            layer, entry["mapping"], entry["learn"], entry["per"], entry["params"]
        )
        for entry in saved["mappings"]
        for layer in [found[position] for position in entry["modules"]]
    }
    install(root, found, mappings)


RESTORE = {NAME: _restore_attention, HEAD: restore_head, MULTILABEL: restore_multilabel_head}
UNPATCH = {NAME: unpatch_model, HEAD: unpatch_lm_head, MULTILABEL: unpatch_multilabel_head}


def _load_learned(root: PreTrainedModel, path: str, hub: dict[str, Any]) -> None:
    """Copy the learned parameters, which from_pretrained ignores, from the checkpoint."""
    wanted = {n: p for n, p in root.named_parameters() if f".{NAME}." in n}
    wanted |= head_parameters(root) | multilabel_parameters(root)
    if not wanted:
        return
    if hub.get("use_safetensors") is False:
        raise RuntimeError(
            f"{path}: use_safetensors=False, but learned parameters are read from safetensors; "
            "leave it out, or save the patched model again with save_pretrained"
        )
    weights = getattr(root.config, "transformers_weights", None) or _with_variant(
        SAFE_WEIGHTS_NAME, hub.get("variant")
    )
    prefix = f"{root.base_model_prefix}."
    names = {n: old.removeprefix(prefix) for n, old in _saved_names(root, wanted).items()}
    files = _weight_files(path, weights, hub)
    saved = _saved_tensors(files, prefix, set(names.values()))
    missing = [n for n, old in names.items() if old not in saved]
    if missing:
        raise RuntimeError(f"{path}: the checkpoint lacks the learned parameters {missing}")
    for name, parameter in wanted.items():
        shape = saved[names[name]].shape
        if shape != parameter.shape:  # copy_ might broadcast
            raise RuntimeError(
                f"{path}: {names[name]} has shape {tuple(shape)}, but its config describes "
                f"{tuple(parameter.shape)}; {AS_WRITTEN}"
            )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(saved[names[name]])


def _saved_names(root: PreTrainedModel, wanted: dict[str, nn.Parameter]) -> dict[str, str]:
    """Return the names of parameters in a file; for some models, such as ViT, these are old names.

    Uses only renamings, because conversions of a quantiser, such as torchao, cannot be reverted.
    """
    conversions = getattr(root, CONVERSIONS, None)
    if conversions is not None:
        renamings = [entry for entry in conversions if isinstance(entry, WeightRenaming)]
        setattr(root, CONVERSIONS, renamings)
    try:
        return {n: next(iter(revert_weight_conversion(root, {n: p}))) for n, p in wanted.items()}
    finally:
        if conversions is not None:
            setattr(root, CONVERSIONS, conversions)


def _with_variant(name: str, variant: str | None) -> str:
    """Return Transformers' file name of a variant: `model.ema.safetensors`."""
    stem, _, suffix = name.rpartition(".")
    return name if variant is None else f"{stem}.{variant}.{suffix}"


def _weight_files(path: str, weights: str, hub: dict[str, Any]) -> list[str]:
    """Return the safetensors files of from_pretrained: `weights`, or the shards of its index.

    Raises:
        RuntimeError: neither exists.
    """
    place = {name: value for name, value in hub.items() if name in PLACE_ARGUMENTS}
    # private: cached_file raises for a missing file otherwise, as for a lost network
    optional = {**place, "_raise_exceptions_for_missing_entries": False}
    if not weights.endswith(".json"):
        if (single := cached_file(path, weights, **optional)) is not None:
            return [single]
        index_name = _with_variant(SAFE_WEIGHTS_INDEX_NAME, hub.get("variant"))
    else:
        index_name = weights
    index = cached_file(path, index_name, **optional)
    if index is None:
        raise RuntimeError(
            f"{path}: has no {weights}, from which learned parameters are read; save the patched "
            "model again with save_pretrained"
        )
    return get_checkpoint_shard_files(path, index, **place)[0]


def _saved_tensors(files: list[str], prefix: str, names: set[str]) -> dict[str, Tensor]:
    """Read the tensors with these names, without `prefix`, from safetensors files."""
    tensors = {}
    for file in files:
        with safe_open(file, framework="pt") as checkpoint:
            for saved in checkpoint.keys():  # noqa: SIM118 - not a dict
                if (name := saved.removeprefix(prefix)) in names:
                    tensors[name] = checkpoint.get_tensor(saved)
    return tensors

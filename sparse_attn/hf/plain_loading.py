"""Prevent Transformers from silently turning a patched model into a plain one.

Importing this module adds checks to Transformers' classes: load, build, save, adapters.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file

from sparse_attn.hf.adapters import ADAPTERS, refuse_adapters
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import KEYS, ONLY_BY_US, patch_of
from sparse_attn.hf.descriptions import refuse_copied

# arguments for the location of a model's files, and for the choice of its weights
PLACE_ARGUMENTS = (
    *("cache_dir", "revision", "token", "subfolder"),
    *("local_files_only", "force_download", "proxies"),
)
FILE_ARGUMENTS = (*PLACE_ARGUMENTS, "variant", "use_safetensors")
GUARDS = (NAME, ONLY_BY_US)
REMEDY = (
    "use sparse_attn.load_pretrained(cls, path), and unpatch what it returns for a plain model; "
    "or, if the weights were trained with softmax since, delete the entry from config.json"
)
_is_expected = ContextVar("_is_expected", default=False)


@contextmanager
def expected() -> Iterator[None]:
    """Switch the checks off while `load_pretrained` restores the mappings."""
    token = _is_expected.set(True)
    try:
        yield
    finally:
        _is_expected.reset(token)


def patched_entries(config: dict[str, Any]) -> list[str]:
    """Return the patch entries of a config and of its parts."""
    parts = [part for part in config.values() if isinstance(part, dict)]
    return [key for key in KEYS if key in config or any(key in part for part in parts)]


def keep_guard(config: PreTrainedConfig, saved: dict[str, Any]) -> dict[str, Any]:
    """Return the dict of a config to save, with what makes a plain load of a patched model fail.

    Transformers reads attn_implementation from a file but does not write it back. Without it a
    plain from_pretrained of the new file would compute softmax.
    """
    if patched_entries(saved):
        parts = [saved[key] for key in config.sub_configs if isinstance(saved.get(key), dict)]
        # private: configs have no public name for their attention implementation
        found = [config._attn_implementation, *(p.get("attn_implementation") for p in parts)]
        if guards := [name for name in found if name in GUARDS]:
            saved.setdefault("attn_implementation", guards[0])
    return saved


def _softmax_of(model: PreTrainedModel, name: str | None, key: str) -> str:
    return (
        f"attn_implementation={name!r}: config.{key} of {type(model).__name__} describes a "
        f"patched model, for which this computes softmax; {REMEDY}"
    )


def _check_implementation(original: Any) -> Any:
    """Wrap PreTrainedModel.__init__: a config with patches must not ask for softmax.

    A model that `load_pretrained` makes does not report our parameters as unexpected.
    """

    @functools.wraps(original)
    def init(self: PreTrainedModel, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        entries = vars(config) if isinstance(config, PreTrainedConfig) else {}
        described = [key for key in KEYS if key in entries]
        # private: configs have no public name for their attention implementation
        implementation = entries.get("_attn_implementation_internal")
        if described and implementation not in GUARDS and not _is_expected.get():
            raise ValueError(
                f"{_softmax_of(self, implementation, described[0])}; to copy a model in memory use "
                "copy.deepcopy, and to build another one the config of a model that is not patched"
            )
        original(self, config, *args, **kwargs)
        if described or _is_expected.get():
            # private: a model has no public list of weights that a load need not report
            ignored = self._keys_to_ignore_on_load_unexpected or ()
            # `load_pretrained` reads the learned parameters itself; without it the model raises
            self._keys_to_ignore_on_load_unexpected = {*ignored, rf"\.{NAME}\."}

    return init


def _check_file(original: Any) -> Any:
    """Wrap PreTrainedModel.from_pretrained: another config must not hide the patches of a file."""

    @functools.wraps(original.__func__)
    def from_pretrained(
        cls: Any, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **kwargs: Any
    ) -> Any:
        if not _is_expected.get():
            _refuse_other_config(pretrained_model_name_or_path, config, kwargs)
        return original.__func__(cls, pretrained_model_name_or_path, *args, config=config, **kwargs)

    return classmethod(from_pretrained)


def _refuse_other_config(path: Any, config: Any, kwargs: dict[str, Any]) -> None:
    gguf = kwargs.get("gguf_file")
    given = config.name_or_path if isinstance(config, PreTrainedConfig) else config
    if path is None or (gguf is None and (given is None or str(given) == str(path))):
        return
    where = {name: value for name, value in kwargs.items() if name in PLACE_ARGUMENTS}
    described = patched_entries(_config_file(path, where))
    if gguf is not None:
        kept = []
    elif isinstance(config, PreTrainedConfig):
        kept = patched_entries(config.to_dict())
    else:
        kept = patched_entries(_config_file(given, {}))
    if lost := [key for key in described if key not in kept]:
        source = f"gguf_file={gguf!r}" if gguf is not None else "config"
        raise ValueError(
            f"{source}: it lacks {lost[0]!r}, which config.json of {str(path)!r} has, so the "
            f"patched model there would compute softmax; {REMEDY}"
        )


def _config_file(path: str | Path, where: dict[str, Any]) -> dict[str, Any]:
    """Read config.json as a dict, for an adapter its base's; empty if there is none."""
    config: dict[str, Any] = {}
    with suppress(OSError, RecursionError):  # reported by Transformers later
        config, _ = PreTrainedConfig.get_config_dict(path, **where)
        if not config and (adapter := find_adapter_config_file(str(path), **where)) is not None:
            described = json.loads(Path(adapter).read_text(encoding="utf-8"))
            base = described.get("base_model_name_or_path")
            config = {} if base in (None, str(path)) else _config_file(base, {})
    return config


def _check_modules(original: Any) -> Any:
    """Wrap PreTrainedModel.save_pretrained: every mapping must be in the config."""

    @functools.wraps(original)
    def save_pretrained(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        refuse_copied(self)
        return original(self, *args, **kwargs)

    return save_pretrained


def _check_switch(original: Any) -> Any:
    """Wrap PreTrainedModel.set_attn_implementation: a plainly loaded model must not run."""

    @functools.wraps(original)
    def set_attn_implementation(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        before = vars(self.config).get("_attn_implementation_internal")
        result = original(self, *args, **kwargs)
        after = self.config._attn_implementation
        if before in GUARDS and after not in GUARDS and not _is_expected.get():
            # a loaded entry is a dict; a patched model has a PatchConfig
            described = [key for key in KEYS if isinstance(vars(self.config).get(key), dict)]
            if described and not any(patch_of(m, key) for m in self.modules() for key in described):
                self.config._attn_implementation = before
                raise ValueError(_softmax_of(self, after, described[0]))
        return result

    return set_attn_implementation


class _Adapters:
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


PreTrainedModel.__init__ = _check_implementation(PreTrainedModel.__init__)
PreTrainedModel.from_pretrained = _check_file(PreTrainedModel.from_pretrained)
PreTrainedModel.save_pretrained = _check_modules(PreTrainedModel.save_pretrained)
PreTrainedModel.set_attn_implementation = _check_switch(PreTrainedModel.set_attn_implementation)
PreTrainedModel.peft_config = _Adapters()

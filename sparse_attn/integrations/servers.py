"""Plugins that make vLLM and SGLang refuse patched checkpoints, not serve them with softmax.

Both read config.json through a parser for the format "hf"; the plugin looks at what it returns.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sparse_attn.hf.config import KEYS


def vllm() -> None:
    """Entry point `vllm.general_plugins`, written against vLLM 0.33.0.

    Raises:
        RuntimeError: this version of vLLM reads configs in another way.
    """
    _guard("vLLM", "VLLM_PLUGINS", "vllm.transformers_utils.config", "get_config_parser")


def sglang() -> None:
    """Entry point `sglang.srt.plugins`, written against SGLang 0.5.23.

    Raises:
        RuntimeError: this version of SGLang reads configs in another way.
    """
    module = "sglang.srt.utils.hf_transformers.config"
    _guard("SGLang", "SGLANG_PLUGINS", module, "get_model_config_parser")


def _guard(server: str, variable: str, module: str, find_parser: str) -> None:
    """Make the parser of `module` refuse patched checkpoints; a second call changes nothing."""
    try:
        configs = import_module(module)
        parser = type(getattr(configs, find_parser)("hf"))
        parse = parser.parse
        # a reader that looks up no parser would bypass the guard
        # private: nothing public tells how a server reads configs
        used = find_parser in inspect.unwrap(configs.get_config).__code__.co_names
    except Exception as error:
        raise _changed(server, variable, module) from error
    if not used:
        raise _changed(server, variable, module)
    if hasattr(parse, "refuses_sparse_attn"):
        return

    @functools.wraps(parse)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        parsed = parse(*args, **kwargs)
        for part in parsed if isinstance(parsed, tuple) else (parsed,):
            entries = part if isinstance(part, Mapping) else getattr(part, "to_dict", dict)()
            if not entries:
                raise _changed(server, variable, module)
            if key := _entry(entries):
                raise NotImplementedError(
                    f"{server} computes softmax, but this checkpoint was saved with other mappings "
                    f"({key} in its config.json); load it with Transformers, write "
                    "it with sparse_attn.export_model, or save the model unpatched"
                )
        return parsed

    refusing.refuses_sparse_attn = True  # type: ignore[attr-defined]
    parser.parse = refusing


def _entry(config: Mapping[str, Any]) -> str | None:
    """Return the key of a patched model in a config or one of its parts."""
    found = (key for key in KEYS if config.get(key) is not None)
    parts = (_entry(part) for part in config.values() if isinstance(part, Mapping))
    return next(found, None) or next(filter(None, parts), None)


def _changed(server: str, variable: str, module: str) -> RuntimeError:
    return RuntimeError(
        f"{server}: {module} reads configs in another way than sparse-attn expects, so that a "
        "patched checkpoint could be served with softmax; update sparse-attn, or uninstall it or "
        f"leave it out of {variable} to serve plain models"
    )
